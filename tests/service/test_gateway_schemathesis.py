"""The running gateway against its own description: generated requests, every response validated, with and without keys.

The short form takes seconds; `FUZZ_S=600` (`make soak`) is the long one.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path

import pytest

from libs.bus.ports import Bus
from tests.service.gateway_served import gateway
from tests.service.test_gateway_problems import OTHER, SECRET

# The whole of one run; what is left of it when all was covered is spent on generated data.
FUZZ_S = int(os.environ.get("FUZZ_S", "3"))
OPERATOR = "operator-secret-0123456789"
SECURE = {
    "RUNTIME_API_KEYS_JSON": json.dumps({"alpha": SECRET, "beta": OTHER}),
    "PERDURE_OPERATOR_KEY": OPERATOR,
}
# A JSON Schema cannot say all that is wrong with a body: a text may not be blank, a pattern has to compile, a limit may not
# be raised, the whole has to fit a record. So what the description allows may be refused; never the other way round.
UNKNOWABLE = "positive_data_acceptance"
# A body that is too large for everything is a refusal of what is wrong with it, too.
CONFIGURATION = """
[checks]
negative_data_rejection.expected-statuses = [
  "400", "401", "404", "405", "409", "410", "413", "415", "422", "429", "503"
]
"""


async def found_by_schemathesis(url: str, folder: Path, *, secret: str | None) -> tuple[int | None, str]:
    words = ["run", f"{url}/openapi.json", "--url", url, "--max-time", str(FUZZ_S), "--seed", "1"]
    words += ["--checks", "all", "--exclude-checks", UNKNOWABLE, "--request-timeout", "20"]
    words += ["--phases", "examples,coverage,fuzzing,stateful", "--no-color", "--warnings", "off"]
    words += ["--header", f"Authorization: Bearer {secret}"] if secret is not None else []
    (folder / "schemathesis.toml").write_text(CONFIGURATION)
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "schemathesis.cli", *words),
        cwd=folder,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    async with asyncio.timeout(FUZZ_S + 120):
        output, _ = await process.communicate()
    return process.returncode, output.decode()


@pytest.mark.parametrize("secret", [None, SECRET])
async def test_generated_requests_find_nothing(bus: Bus, tmp_path: Path, secret: str | None) -> None:
    async with gateway(bus, tmp_path, environment=SECURE if secret is not None else None) as served:
        code, output = await found_by_schemathesis(served.url, tmp_path, secret=secret)
    assert code == 0, "\n".join(line[:400] for line in output.splitlines())[-8000:]
