"""`perdure check-model`: can the model behind the configured endpoint carry a run?

Invariant: every request goes out and comes back through the executor's own code, once and without retries; a call
counts only when the server sent one; the key is never shown, whatever the endpoint says. Every failed check says what to
do next.
"""

import argparse
import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import aclosing

import msgspec

from deploy.cli.model_probe import CHECKS, Finding, Probe
from deploy.cli.outcome import Exit, refused
from deploy.cli.terminal import Screen, printable
from libs.chassis.clock import SystemClock
from libs.chassis.settings import read_environment
from libs.contracts.errors import ConfigurationError
from services.executor.egress.profile import profile_of
from services.executor.endpoint.completion import ModelSettings, Patience, open_model
from services.executor.endpoint.key import Key
from services.executor.settings import ExecutorSettings

# Where the client looks when nothing else is said.
DEFAULT_URL = "https://api.openai.com/v1"


def main(args: argparse.Namespace) -> Exit:
    """Examine and tell."""
    try:
        settings = ExecutorSettings.load("check-model", read_environment())
    except ConfigurationError as error:
        return refused(error.message)
    screen, findings = Screen(), list[Finding]()
    model = str(args.model or settings.model_id or "")
    url = settings.base_url or DEFAULT_URL

    async def examine() -> None:
        async with aclosing(examined(settings, model, url, args.timeout)) as found:
            async for finding in found:
                findings.append(finding)
                if not args.json:
                    verdict = screen.paint(
                        "PASS" if finding.passed else "FAIL", "good" if finding.passed else "bad"
                    )
                    screen.line(f"{verdict} {finding.name:<16} {printable(finding.message)}")

    if not args.json:
        screen.line(screen.paint(f"{model or 'no model'} at {printable(public(url))}", "dim"))
    asyncio.run(examine())
    passed = all(finding.passed for finding in findings)
    if args.json:
        checks = [
            {"name": one.name, "status": "PASS" if one.passed else "FAIL", "message": one.message}
            for one in findings
        ]
        screen.line(json.dumps({"ok": passed, "model": model, "endpoint": public(url), "checks": checks}))
    return Exit.DONE if passed else Exit.FAILED


async def examined(
    settings: ExecutorSettings, model: str, url: str, timeout_s: float
) -> AsyncGenerator[Finding]:
    """All findings, one after the other; a check that others depend on is named by those that were not tried."""
    missing = [] if settings.api_key is not None else ["OPENAI_API_KEY"]
    missing += [] if model else ["MODEL_ID"]
    if missing:
        told = f"{' and '.join(missing)} not set: name an OpenAI-compatible endpoint in the environment or in .env here"
        yield Finding(CHECKS[0], False, told)
        for name in CHECKS[1:]:
            yield Finding(name, False, "not tried: no connection")
        return
    assert settings.api_key is not None
    # As it is configured now: nobody replaces it meanwhile.
    key = Key(settings.api_key.get_secret_value())
    # What the operator says of the endpoint holds here too, but a call in a text is none, whatever a run makes of it.
    profile = profile_of(settings.model_profiles, model)
    endpoint = ModelSettings(
        key=key,
        base_url=settings.base_url,
        model=model,
        idle_timeout_s=timeout_s,
        profiles={model: msgspec.structs.replace(profile, text_calls=False)},
    )
    # One try each: who examines wants to see the first fault, and how to mend it.
    async with open_model(endpoint, SystemClock(), {}, Patience(waits_s=())) as opened:
        probe = Probe(opened, model_id=model, url=public(url), timeout_s=timeout_s)
        async with aclosing(probe.findings()) as found:
            async for finding in found:
                yield finding._replace(message=key.hidden(finding.message))


def public(url: str) -> str:
    """An address without what may be secret in it."""
    scheme, separator, rest = url.partition("://")
    place = rest.partition("?")[0].partition("#")[0]
    authority, slash, path = place.partition("/")
    return f"{scheme}{separator}{authority.rpartition('@')[2]}{slash}{path}"
