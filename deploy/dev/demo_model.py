"""The model of the demo: a scripted one in a process of its own, or the one that the surroundings name.

Invariant: with the script the demo shows the same everywhere, so nothing of the caller's settings reaches it; with a
real model it gets the settings that lead to that model, and nothing else.
"""

import asyncio
import os
import sys
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing, asynccontextmanager
from pathlib import Path

from deploy.cli.check_model import DEFAULT_URL, examined
from deploy.dev.child import Child, Program
from deploy.dev.mergedlog import MergedLog
from deploy.dev.nats_server import free_port
from libs.contracts.errors import ConfigurationError
from services.executor.settings import ExecutorSettings

_START_S = 10.0
_LOOK_S = 0.02
# A large model may have to be loaded for its first answer.
_ANSWER_S = 60.0
_MACHINE = ("PATH", "HOME", "LANG", "LC_ALL", "TMPDIR")
# What leads to a model, over proxies and private authorities too.
_ENDPOINT = (
    "OPENAI_API_KEY",
    "OPENAI_BASE_URL",
    "DASHSCOPE_API_KEY",
    "DASHSCOPE_BASE_URL",
    "MODEL_ID",
    "PERDURE_FALLBACK_MODELS",
    "PERDURE_MODEL_PROFILES",
    *(
        "HTTP_PROXY",
        "HTTPS_PROXY",
        "ALL_PROXY",
        "NO_PROXY",
        "http_proxy",
        "https_proxy",
        "all_proxy",
        "no_proxy",
    ),
    *("SSL_CERT_FILE", "SSL_CERT_DIR"),
)


def real(known: Mapping[str, str]) -> dict[str, str]:
    """What the services are told of the model that `known` names. Raises `ConfigurationError` when it names none."""
    missing = [] if known.get("OPENAI_API_KEY") or known.get("DASHSCOPE_API_KEY") else ["OPENAI_API_KEY"]
    missing += [] if known.get("MODEL_ID") else ["MODEL_ID"]
    if missing:
        raise ConfigurationError(
            f"{' and '.join(missing)} not set; name the model's endpoint in the environment or in .env here "
            "(OPENAI_API_KEY, OPENAI_BASE_URL, MODEL_ID), or run the demo without MODEL=real"
        )
    found = {name: known[name] for name in (*_MACHINE, *_ENDPOINT) if known.get(name)}
    if prices := known.get("PERDURE_MODEL_PRICES"):
        # The demo's services run in a folder of their own.
        found["PERDURE_MODEL_PRICES"] = str(Path(prices).absolute())
    return found


async def require_endpoint(told: Mapping[str, str]) -> None:
    """Raises `ConfigurationError` when no model answers there: a run would be patient about it for minutes."""
    settings = ExecutorSettings.load("demo", told)
    url = settings.base_url or DEFAULT_URL
    async with aclosing(examined(settings, settings.model_id or "", url, _ANSWER_S)) as findings:
        connection = await anext(findings)
    if not connection.passed:
        raise ConfigurationError(connection.message)


@asynccontextmanager
async def scripted(folder: Path, log: MergedLog, says: str) -> AsyncGenerator[dict[str, str]]:
    """The model that a script describes, as a process of its own; yields what the services are told of it."""
    script = folder / "script.json"
    script.write_text(says)
    port = free_port()
    argv = (sys.executable, "-m", "deploy.dev.model_server", "--script", str(script), "--port", str(port))
    environment = {"PATH": os.environ.get("PATH", os.defpath)}
    child = Child(Program(name="model", argv=argv, environment=environment, drain_s=2.0), log)
    running = asyncio.create_task(child.run())
    try:
        async with asyncio.timeout(_START_S):
            while not await _listens(port):  # noqa: ASYNC110 nobody tells when another process listens
                await asyncio.sleep(_LOOK_S)
        yield {
            **{name: os.environ[name] for name in _MACHINE if name in os.environ},
            "OPENAI_API_KEY": "the-scripted-model-takes-any",
            "OPENAI_BASE_URL": f"http://127.0.0.1:{port}/v1",
            "MODEL_ID": "scripted",
        }
    finally:
        await child.drain()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def _listens(port: int) -> bool:
    try:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
    except OSError:
        return False
    writer.close()
    return True
