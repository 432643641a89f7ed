"""Endings of a run that no other test brings about, through five real processes."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.e2e.field_case import sent
from tests.e2e.stage import Stage, call, calls, says, stage
from tests.fakes.wire import DONE, chunk, fin, usage

SCRIPT = {
    "[refuse]": [sent(chunk(refusal="I will not."), fin("stop") + usage(10, 5) + DONE)],
    "[no folder]": [calls(call("read_file", path="a.txt")), says("Read.")],
}


@pytest.fixture(scope="module")
async def on(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stage]:
    async with stage(tmp_path_factory.mktemp("errors"), SCRIPT) as ready:
        yield ready


async def _ending(on: Stage, run_id: str) -> tuple[str, str, str]:
    run = await on.ended(run_id)
    assert run.error is not None
    assert [event.type for event in await on.events(run_id)][-1] == "run.failed"
    return run.status, run.error.error_code, run.error.message


async def test_a_model_that_refuses_fails_the_run_with_its_words(on: Stage) -> None:
    status, code, message = await _ending(on, await on.submit("[refuse]"))
    assert (status, code) == ("FAILED", "MODEL_REFUSED")
    assert "I will not." in message


async def test_a_workspace_that_cannot_be_one_fails_the_run_and_is_left_alone(on: Stage) -> None:
    taken = on.data / "workspaces" / "taken"
    taken.parent.mkdir(parents=True, exist_ok=True)
    taken.write_text("somebody's file")
    status, code, message = await _ending(on, await on.submit("[no folder]", workspace="taken"))
    assert (status, code) == ("FAILED", "WORKSPACE_ERROR")
    assert "taken" in message
    assert taken.read_text() == "somebody's file"
