"""The running gateway against its own description: generated requests, every response validated, with and without keys.

The short form asks each operation once or twice; `FUZZ_S=600` (`make soak`) lets schemathesis search for ten minutes each.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any, cast

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, seed, settings

from libs.bus.ports import Bus
from services.gateway import openapi
from services.gateway.operations import OPERATIONS
from tests.service.gateway_served import DEADLINE_S, gateway
from tests.service.test_gateway_problems import OTHER, SECRET

# The whole of one run; what is left of it when all was covered is spent on generated data.
FUZZ_S = int(os.environ.get("FUZZ_S", "0"))
OPERATOR = "operator-secret-0123456789"
SECURE = {
    "RUNTIME_API_KEYS_JSON": json.dumps({"alpha": SECRET, "beta": OTHER}),
    "PERDURE_OPERATOR_KEY": OPERATOR,
}
# A JSON Schema cannot say all that is wrong with a body: a text may not be blank, a pattern has to compile, a limit may not
# be raised, the whole has to fit a record. So what the description allows may be refused; never the other way round.
UNKNOWABLE = "positive_data_acceptance"
# A body that is too large for everything is a refusal of what is wrong with it, too.
CONFIGURATION = f"""
[checks]
{UNKNOWABLE}.enabled = false
negative_data_rejection.expected-statuses = [
  "400", "401", "404", "405", "409", "410", "413", "415", "422", "429", "503"
]
"""


ONE = settings(
    max_examples=1,
    database=None,
    deadline=None,
    phases=[Phase.generate],
    # One case of a large schema takes what many cases of a small one do.
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.large_base_example],
)


async def found_by_schemathesis(url: str, folder: Path, *, secret: str | None) -> tuple[int | None, str]:
    words = ["run", f"{url}/openapi.json", "--url", url, "--max-time", str(FUZZ_S), "--seed", "1"]
    # The command line wins over the configuration.
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


@pytest.mark.skipif(not FUZZ_S, reason="the long form: FUZZ_S=600, make soak")
@pytest.mark.parametrize("secret", [None, SECRET])
async def test_ten_minutes_of_generated_requests_find_nothing(
    bus: Bus, tmp_path: Path, secret: str | None
) -> None:
    async with gateway(bus, tmp_path, environment=SECURE if secret is not None else None) as served:
        code, output = await found_by_schemathesis(served.url, tmp_path, secret=secret)
    assert code == 0, "\n".join(line[:400] for line in output.splitlines())[-8000:]


async def test_generated_requests_find_nothing(bus: Bus, tmp_path: Path) -> None:
    async with (
        gateway(bus, tmp_path / "open") as trusted,
        gateway(bus, tmp_path / "secure", replica="gateway-2", environment=SECURE) as secure,
    ):
        # The client of these checks blocks; the gateways serve in this loop meanwhile.
        known = {"Authorization": f"Bearer {SECRET}"}
        asked = await asyncio.to_thread(checked, [(trusted.url, {}), (secure.url, known)])
    assert asked == len(OPERATIONS)


def checked(servers: list[tuple[str, dict[str, str]]]) -> int:
    """A valid request of each operation, and an invalid one where the description rules any out, to each server; the number of
    operations. Raises what a check finds."""
    # Its types have parameters that it leaves open itself.
    loader = cast("Any", schemathesis.openapi)
    described = loader.from_path(openapi.PUBLISHED, config=schemathesis.Config.from_str(CONFIGURATION))
    operations = [result.ok() for result in described.get_all_operations()]

    def ask(case: Any) -> None:
        for url, headers in servers:
            case.call_and_validate(base_url=url, headers=headers, timeout=DEADLINE_S)

    for operation in operations:
        for mode in schemathesis.GenerationMode:
            if mode.is_positive or operation.body or operation.query:
                drawn = given(case=operation.as_strategy(generation_mode=mode))
                seed(1)(ONE(drawn(ask)))()
    return len(operations)
