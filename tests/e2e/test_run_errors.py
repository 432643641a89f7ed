"""Endings of a run that no other test brings about, through five real processes."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.e2e.field_case import sent
from tests.e2e.stage import Stage, call, calls, says, stage
from tests.fakes.wire import DONE, chunk, fin, usage

SCRIPT = {
    "[refuse]": [sent(chunk(refusal="I will not."), fin("stop") + usage(10, 5) + DONE)],
    "[parent]": [calls(call("delegate", goal="[child] look", tools=["echo", "bash"])), says("It looked.")],
    "[child]": [says("Looked.")],
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


async def test_a_task_that_names_a_tool_of_nobody_fails_before_the_model_is_asked(on: Stage) -> None:
    run_id = await on.submit("[never asked]", tools=["read_file", "mcp_weather_tides"])
    status, code, message = await _ending(on, run_id)
    assert (status, code) == ("FAILED", "DEPENDENCY_FAILED")
    assert "mcp_weather_tides" in message
    assert "read_file" not in message
    assert "model.requested" not in [event.type for event in await on.events(run_id)]


async def test_a_tool_of_nobody_that_a_model_names_for_its_child_is_left_out(on: Stage) -> None:
    run_id = await on.submit("[parent]")
    run = await on.ended(run_id)
    assert run.status == "COMPLETED"
    results = [event.payload for event in await on.events(run_id) if event.type == "tool.completed"]
    assert [(result["ok"], "Looked." in str(result["output"])) for result in results] == [(True, True)]


async def test_a_workspace_that_cannot_be_one_fails_the_run_and_is_left_alone(on: Stage) -> None:
    taken = on.data / "workspaces" / "taken"
    taken.parent.mkdir(parents=True, exist_ok=True)
    taken.write_text("somebody's file")
    status, code, message = await _ending(on, await on.submit("[no folder]", workspace="taken"))
    assert (status, code) == ("FAILED", "WORKSPACE_ERROR")
    assert "taken" in message
    assert taken.read_text() == "somebody's file"
