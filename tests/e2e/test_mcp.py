"""A model calls tools of an MCP server: through approval, to its end, and over the death of the host in the middle."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from libs.contracts.http import Approval, Reconciliation
from tests.e2e.stage import Stage, call, calls, says, stage
from tests.fakes.waiting import eventually, until
from tests.service.mcp_host import official, processes_of

SCRIPT = {
    "[charge]": [
        calls(call("mcp_shop_charge", amount=1)),
        calls(call("mcp_shop_put", key="a")),
        says("Charged and stored."),
    ],
    "[held]": [calls(call("mcp_shop_charge", amount=2, hold=True)), says("Charged once.")],
}
POLICY = {"rules": [{"effect": "allow", "tool": "mcp_shop_charge"}]}


@pytest.fixture(scope="module")
async def on(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stage]:
    environment = {
        "PERDURE_MCP": json.dumps({"shop": official(environment={"PYTHONPATH": os.getcwd()})}),
        "PERDURE_POLICY": json.dumps(POLICY),
        "SANDBOX": "bwrap" if shutil.which("bwrap") else "none",
    }
    async with stage(tmp_path_factory.mktemp("mcp"), SCRIPT, environment) as ready:
        await offered(ready)
        yield ready


async def offered(on: Stage) -> None:
    async def tools() -> set[str]:
        return {tool.name for tool in (await on.client.health()).tools}

    await eventually(tools, "the server's tools are on offer", fits=lambda found: "mcp_shop_charge" in found)


def effects(on: Stage) -> list[str]:
    file: Path = on.data / "workspaces" / ".perdure-git" / "mcp" / "shop" / "effects"
    return file.read_text().splitlines() if file.exists() else []


async def test_a_run_calls_tools_of_a_server_and_asks_where_the_policy_does_not_allow(on: Stage) -> None:
    run_id = await on.submit("[charge]")
    waiting = await on.until(run_id, lambda run: run.status == "WAITING_FOR_INPUT")
    assert waiting.pending_question is not None
    assert effects(on) == ["charge 1"]
    asked = str(waiting.pending_question.call_id)
    await on.client.approve(run_id, Approval(call_id=asked, decision="approve"))
    run = await on.ended(run_id)
    assert run.status == "COMPLETED", run.error
    assert effects(on) == ["charge 1", "put a"]
    results = [event.payload for event in await on.events(run_id) if event.type == "tool.completed"]
    assert [result["output"] for result in results] == ["charged 1", 'stored\n{\n  "key": "a"\n}']
    sent = on.model.bodies[-1].decode()
    assert "mcp_shop_charge" in sent
    assert "charged 1" in sent


async def test_a_host_that_is_killed_in_a_call_leaves_the_decision_to_a_person_and_no_process(
    on: Stage,
) -> None:
    run_id = await on.submit("[held]")
    await until(lambda: "charge 2" in effects(on), "the call has begun")
    former = set(processes_of("shop"))
    assert former
    on.perdure.kill("toolhost")
    waiting = await on.until(run_id, lambda run: run.status == "RECONCILIATION_REQUIRED")
    assert waiting.pending_reconciliation is not None
    await until(lambda: not former & set(processes_of("shop")), "the dead host's server is gone")
    call_id = waiting.pending_reconciliation.call_id
    seen = "The shop says: charged."
    await on.client.reconcile(run_id, Reconciliation(call_id=call_id, decision="accept", observation=seen))
    run = await on.ended(run_id)
    assert run.status == "COMPLETED", run.error
    assert effects(on).count("charge 2") == 1
    assert seen in on.model.bodies[-1].decode()
