"""Whole runs through five real processes: the stream, cancellation, questions, verification, escapes."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import msgspec
import pytest

from deploy.dev.model_server import ModelServer, serve
from deploy.dev.wire_replay import replayed
from libs.bus.connection import connect
from libs.bus.journal import Journal
from libs.chassis.clock import SystemClock
from tests.e2e.stage import Script, Stage, call, calls, living, says, stage
from tests.fakes.model import asked, connected, ignore, sent
from tests.fakes.waiting import eventually, until
from tests.fakes.wire_cases import STREAMS

ESCAPES = ["../secret", "/etc/passwd", "a\0b", "link", "dangling", "linked/inside", "../work_b/b.txt"]

# A stream that no standard allows, as somebody's server sends it.
STRANGE = next(case for case in STREAMS if case.name == "two calls share an index and have no id")

SCRIPT: Script = {
    "[echo]": [*(calls(call("echo", text=f"turn {n}")) for n in range(8)), says("I echoed eight times.")],
    "[slow]": [
        *(calls(call("echo", text=f"turn {n}"), text=["a", "b", "c"], chunk_delay_s=0.03) for n in range(8)),
        says("Slowly."),
    ],
    "[talk]": [says([f"word {n} " for n in range(2000)], chunk_delay_s=0.1)],
    "[hang]": [calls(call("run_tests"))],
    "[ask]": [
        calls(call("read_file", path="a.txt"), call("write_file", path="b.txt", content="once")),
        calls(call("ask_user", question="left or right?", options=["left", "right"])),
        says("Thank you."),
    ],
    "[agents]": [calls(call("ask_user", question="Go on?")), says("I did what was asked.")],
    "[strange]": [{"base64": sent(STRANGE.stream, 5)}, says("I read them.")],
    "[wait]": [calls(call("ask_user", question="for ever?"))],
    "[escape]": [
        calls(*(call("read_file", path=path) for path in ESCAPES)),
        calls(*(call("write_file", path=path, content="x") for path in ESCAPES)),
        says("None of it worked."),
    ],
    "[order]": [
        calls(
            call("write_file", path="n.txt", content="one\n"),
            call("read_file", path="n.txt"),
            call("edit_file", path="./n.txt", old_str="one", new_str="two"),
            # Takes its time beside the others: what they are told is in the log before the next of them begins.
            call("search_text", pattern="(a|b|c)+z", path="big"),
            call("apply_patch", patch="*** Begin Patch\n*** Update File: n.txt\n-two\n+three\n*** End Patch"),
            call("search_text", pattern="three"),
        ),
        says("All six."),
    ],
    "[know]": [calls(call("search_knowledge", query="which paint for the attic")), says("Blue.")],
    "[answer]": [says("The answer is 42.")],
    "[liar]": [says("I created `report.md` with all the details.")] * 4,
}


@pytest.fixture(scope="module")
async def on(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stage]:
    more = {"PERDURE_RECORD_WIRE": "true", "HYBRID_EMBED_MODEL": "scripted"}
    async with stage(tmp_path_factory.mktemp("run"), SCRIPT, more) as ready:
        yield ready


async def _stream(on: Stage, run_id: str, after: int | None = None) -> tuple[int, list[str]]:
    """Status and `id:`/`data:` lines of one connection to the stream, until the server ends it."""
    headers = {} if after is None else {"Last-Event-ID": str(after)}
    async with httpx.AsyncClient(timeout=60) as http:
        url = f"{on.perdure.url}/api/runs/{run_id}/stream?deltas=false"
        async with http.stream("GET", url, headers=headers) as response:
            lines = [line async for line in response.aiter_lines()]
    return response.status_code, [line for line in lines if line.startswith(("id:", "data:"))]


async def test_events_are_gapless_and_every_resume_point_of_a_finished_run_gives_exactly_the_rest(
    on: Stage,
) -> None:
    run_id = await on.submit("[echo]")
    await on.ended(run_id)
    events = await on.events(run_id)
    assert [event.sequence for event in events] == list(range(1, len(events) + 1))
    status, whole = await _stream(on, run_id)
    assert status == 200
    assert [line for line in whole if line.startswith("id:")] == [
        f"id: {n}" for n in range(1, len(events) + 1)
    ]
    for k in range(len(events)):
        assert await _stream(on, run_id, after=k) == (200, whole[2 * k :])
    assert await _stream(on, run_id, after=len(events)) == (204, [])
    assert (await _stream(on, run_id, after=len(events) + 1))[0] == 400


async def test_two_hundred_clients_that_join_a_running_run_at_any_point_all_get_the_same_events(
    on: Stage,
) -> None:
    run_id = await on.submit("[slow]")
    joined: list[asyncio.Task[tuple[int, list[str]]]] = []
    for number in range(200):
        joined.append(asyncio.create_task(_stream(on, run_id, after=min(number // 20, 3))))
        await asyncio.sleep(0.002)
    await on.ended(run_id)
    _, whole = await _stream(on, run_id)
    for number, client in enumerate(joined):
        assert await client == (200, whole[2 * min(number // 20, 3) :])


@pytest.mark.parametrize("marker,moment", [("[talk]", "model.requested"), ("[hang]", "tool.requested")])
async def test_a_cancel_in_the_middle_ends_the_run_and_everything_it_started(
    on: Stage, marker: str, moment: str
) -> None:
    name = f"cancel{moment.partition('.')[0]}"
    folder = on.workspace(
        name, {"run_tests.sh": f"touch started; sleep 1000{len(name)} & sleep 1000{len(name)}\n"}
    )
    run_id = await on.submit(marker, workspace=name)
    await on.event(run_id, moment)
    if moment == "tool.requested":
        await until((folder / "started").exists, "the tests have started")
    await on.client.cancel(run_id)
    async with asyncio.timeout(10):
        run = await on.ended(run_id)
    assert run.status == "CANCELLED"
    await on.client.cancel(run_id)
    before = await on.events(run_id)
    assert before[-1].type == "run.cancelled"
    assert not living(f"1000{len(name)}")
    await on.ended(await on.submit("[answer]"))
    assert await on.events(run_id) == before


async def test_a_cancel_while_waiting_for_input_is_the_last_event(on: Stage) -> None:
    run_id = await on.submit("[wait]")
    await on.until(run_id, lambda run: run.status == "WAITING_FOR_INPUT")
    await on.client.cancel(run_id)
    assert (await on.client.run(run_id)).status == "CANCELLED"
    assert (await on.events(run_id))[-1].type == "run.cancelled"


async def test_calls_of_one_turn_that_touch_the_same_file_happen_and_are_told_in_the_order_of_the_model(
    on: Stage,
) -> None:
    folder = on.workspace("ordered", {"run_tests.sh": "exit 0\n", "big/x.txt": "abcabcabcabc\n" * 100_000})
    run_id = await on.submit("[order]", workspace="ordered")
    assert (await on.ended(run_id)).status == "COMPLETED"
    events = await on.events(run_id)
    asked = [event.payload["call_id"] for event in events if event.type == "tool.requested"]
    said = {
        event.payload["call_id"]: str(event.payload["output"])
        for event in events
        if event.type == "tool.completed"
    }
    assert [said[call_id].splitlines()[-1] for call_id in asked] == [
        "created n.txt: 1 lines, 4 bytes",
        "     1\tone",
        "edited n.txt: 1 replacement at line 1; the file now has 1 lines",
        "no match for '(a|b|c)+z' in 1 files",
        "M n.txt: 1 hunk at line 1",
        "(1 matching lines in 1 of 3 files)",
    ]
    assert (folder / "n.txt").read_text() == "three\n"
    # What a call waited for is in the log before it starts, so that no later owner asks again and sees what came after.
    stored = {event.payload["call_id"]: event.at for event in events if event.type == "tool.completed"}
    async with connect(on.bus, SystemClock()) as bus:
        journal = Journal(bus.bucket("journal"))
        for before, after in ((0, 2), (1, 2), (2, 4)):
            found = await journal.read(run_id, str(asked[after]), 1)
            assert found is not None
            assert stored[asked[before]] <= found.entry.at


async def test_escapes_from_the_workspace_are_errors_of_the_tool_and_the_run_goes_on(on: Stage) -> None:
    folder = on.workspace("work_a", {"a.txt": "mine"})
    on.workspace("work_b", {"b.txt": "another's"})
    outside = on.data / "secret"
    outside.write_text("secret")
    (folder / "link").symlink_to(outside)
    (folder / "dangling").symlink_to(on.data / "not-there")
    (folder / "linked").symlink_to(on.data, target_is_directory=True)
    run_id = await on.submit("[escape]", workspace="work_a")
    run = await on.ended(run_id)
    assert run.status == "COMPLETED", run.error
    results = [event.payload for event in await on.events(run_id) if event.type == "tool.completed"]
    assert len(results) == 2 * len(ESCAPES)
    assert not [result for result in results if result["ok"] or result["output"] == "secret"]
    assert outside.read_text() == "secret"
    assert not (on.data / "not-there").exists()
    assert (on.data / "workspaces" / "work_b" / "b.txt").read_text() == "another's"


async def test_an_answer_without_anything_to_check_is_unverified_and_never_passed(on: Stage) -> None:
    run = await on.ended(await on.submit("[answer]"))
    assert run.status == "COMPLETED"
    assert run.verification is not None
    assert run.verification["status"] == "UNVERIFIED"


async def test_a_claim_of_a_file_that_was_never_written_fails_the_verification(on: Stage) -> None:
    run_id = await on.submit("[liar]")
    run = await on.ended(run_id)
    assert run.status == "FAILED"
    assert run.error is not None
    assert run.error.error_code == "VERIFICATION_FAILED"
    rounds = [event.payload for event in await on.events(run_id) if event.type == "verification.completed"]
    assert [payload["status"] for payload in rounds] == ["FAILED"] * 3


async def test_the_projects_instructions_are_in_the_prompt_which_stays_the_same_when_they_change(
    on: Stage,
) -> None:
    folder = on.workspace("with_agents", {"AGENTS.md": "Tabs, not spaces.", "run_tests.sh": "exit 0\n"})
    run_id = await on.submit("[agents]", workspace="with_agents", instructions="In French.")
    await on.until(run_id, lambda run: run.status == "WAITING_FOR_INPUT")
    (folder / "AGENTS.md").write_text("Spaces, not tabs.")
    await on.client.reply(run_id, "yes")
    assert (await on.ended(run_id)).status == "COMPLETED"
    first, second = [json.loads(body) for body in on.model.bodies if b"[agents]" in body]
    assert first["messages"] == second["messages"][:2]
    assert first["tools"] == second["tools"]
    prompt = first["messages"][0]["content"]
    assert prompt.endswith("Tabs, not spaces.")
    assert "In French." in prompt
    changed = [message["content"] for message in second["messages"] if message["role"] == "user"][-1]
    assert changed.startswith("SYSTEM NOTE")
    assert "AGENTS.md" in changed
    kinds = [event.type for event in await on.events(run_id)]
    assert kinds.index("workspace.attached") < kinds.index("model.requested")


async def test_a_strange_stream_of_a_run_is_exported_and_replayed_to_the_same_turn(
    on: Stage, tmp_path: Path
) -> None:
    run_id = await on.submit("[strange]")
    await on.ended(run_id)
    file = tmp_path / "strange.jsonl"
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "deploy.cli", "runs", "export", run_id, "--wire", "-o", str(file)),
        env={**os.environ, "PERDURE_URL": on.perdure.url},
    )
    assert await process.wait() == 0
    async with serve(ModelServer(replayed(file.read_bytes()))) as url, connected(url) as model:
        again = await model.complete(asked(), ignore)
    recorded = (await on.event(run_id, "model.completed")).payload
    assert msgspec.to_builtins(again.calls) == recorded["tool_calls"]
    assert tuple((made.name, made.arguments) for made in again.calls) == STRANGE.calls
    assert again.content == recorded["content"]


async def test_of_twenty_concurrent_replies_one_wins_and_the_run_goes_on_with_it(on: Stage) -> None:
    on.workspace("asking", {"a.txt": "hello", "run_tests.sh": "exit 0\n"})
    run_id = await on.submit("[ask]", workspace="asking")
    await on.until(run_id, lambda run: run.status == "WAITING_FOR_INPUT")
    async with httpx.AsyncClient(timeout=30) as http:
        url = f"{on.perdure.url}/api/runs/{run_id}/reply"
        replies = await asyncio.gather(*(http.post(url, json={"answer": f"left {n}"}) for n in range(20)))
    assert sorted(reply.status_code for reply in replies) == [202] + [409] * 19
    assert (await on.ended(run_id)).status == "COMPLETED"
    kinds = [event.type for event in await on.events(run_id)]
    assert kinds.count("input.received") == 1


async def test_what_is_indexed_while_perdure_runs_is_found_by_a_model_by_words_and_by_meaning(
    on: Stage, tmp_path: Path
) -> None:
    (tmp_path / "house.md").write_text("# Attic\n\nIts walls get the blue paint.\n\n# Cellar\n\nDamp.\n")
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "deploy.cli", "knowledge", "index", str(tmp_path), "--as", "house"),
        env={**on.perdure.plan.environment, "PERDURE_DATA": str(on.data)},
        stdout=asyncio.subprocess.DEVNULL,
    )
    assert await process.wait() == 0

    async def offered() -> bool:
        return "search_knowledge" in {tool.name for tool in (await on.client.health()).tools}

    await eventually(offered, "the tool is offered")
    run_id = await on.submit("[know] Which paint?")
    assert (await on.ended(run_id)).status == "COMPLETED"
    found = (await on.event(run_id, "tool.completed")).payload
    assert "house/house.md:1-3 · Attic (words #1, meaning #1)\n   | # Attic\n" in str(found["output"])
    assert "'notes': []" in str(found["metadata"])
