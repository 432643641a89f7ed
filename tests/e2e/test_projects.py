"""Projects through five real processes: from a brief to verified, committed features, whatever is killed on the way."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.e2e.stage import Script, Stage, call, calls, says, stage
from tests.fakes.waiting import PATIENCE_S, eventually


def check(path: str, text: str) -> dict[str, object]:
    return {"kind": "command", "argv": ["grep", "-q", text, path]}


def feature(identifier: str, **more: object) -> dict[str, Any]:
    acceptance = [check(f"{identifier}.txt", f"this is {identifier}")]
    return {"id": identifier, "title": f"make {identifier}", "acceptance": acceptance, **more}


def working_on(identifier: str) -> str:
    """What only the goal of a session for this feature holds."""
    return f"clean checkout of the workspace:\n\n{identifier}: make {identifier}\n"


def builds(identifier: str, text: str = "") -> list[dict[str, object]]:
    return [
        calls(call("write_file", path=f"{identifier}.txt", content=text or f"this is {identifier}\n")),
        calls(
            call("write_handoff", done=[f"{identifier} is there"], next=[], decisions=[f"keep {identifier}"])
        ),
        says(f"{identifier} is built."),
    ]


LETTERS = [f"part_{letter}" for letter in "abcde"]
SCRIPT: Script = {
    "[alphabet]\n\nThis is the first session": [
        # The configured tests are red as long as nothing is built, and that is no fault of the first session.
        calls(call("write_file", path="run_tests.sh", content="cat part_*.txt\n")),
        calls(call("write_features", features=[feature("part_a"), feature("part_a")])),
        calls(call("write_features", features=[feature(name) for name in LETTERS])),
        calls(call("write_handoff", done=["the list"], next=["part_a"], decisions=["plain files"])),
        says("The list is written."),
    ],
    # What it says at last was revoked long before.
    "The last error and its evidence:\nSTALLED": builds("quiet"),
    working_on("quiet"): [says("It is done.", delay_s=PATIENCE_S)],
    # Its own file has come back from the session before, and the other one's version beside its own.
    "does not go together with what was committed meanwhile": [
        calls(call("write_file", path="sides.txt", content="left and right\n")),
        *builds("solved")[1:],
    ],
    "This is attempt 2. It was tried before. The last error": builds("stubborn"),
    **{working_on(name): builds(name) for name in (*LETTERS, "one", "two", "three", "hooked", "behind")},
    **{
        working_on(side): [
            calls(call("write_file", path="sides.txt", content=f"{side}\n")),
            *builds(side),
        ]
        for side in ("left", "right")
    },
    working_on("stubborn"): [
        calls(call("write_file", path="stubborn.txt", content="something else\n")),
        *[says("It is done.")] * 3,
    ],
}


@pytest.fixture(scope="module")
async def perdure(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stage]:
    async with stage(tmp_path_factory.mktemp("projects"), SCRIPT) as made:
        yield made


async def create(perdure: Stage, **body: object) -> str:
    async with httpx.AsyncClient(base_url=perdure.perdure.url) as http:
        answer = await http.post("/api/projects", json=body)
        assert answer.status_code == 201, answer.text
        return str(answer.json()["project_id"])


async def card(perdure: Stage, project_id: str) -> dict[str, Any]:
    async with httpx.AsyncClient(base_url=perdure.perdure.url, timeout=30) as http:
        answer = await http.get(f"/api/projects/{project_id}")
        assert answer.status_code == 200, answer.text
        return answer.json()


async def never() -> bool:
    return False


async def once(
    perdure: Stage, project_id: str, status: str, meanwhile: Callable[[], Awaitable[bool]] = never
) -> dict[str, Any]:
    """The card once the project is in this status, or something else is true. Patience is for each step of the project,
    not for all of them."""
    sequence: object = None

    async def look() -> tuple[dict[str, Any], bool] | None:
        seen, over = await card(perdure, project_id), await meanwhile()
        over = over or seen["status"] == status
        return (seen, over) if over or seen["last_sequence"] != sequence else None

    while True:
        seen, over = await eventually(look, f"{project_id} {status} behind event {sequence}", every_s=0.1)
        if over:
            return seen
        sequence = seen["last_sequence"]


def log_of(perdure: Stage, project_id: str) -> list[str]:
    """The features that the workspace's own history holds, oldest first."""
    folder = perdure.data / "workspaces" / project_id
    command = [
        "git",
        "-C",
        str(folder),
        "log",
        "--reverse",
        "--format=%(trailers:key=Perdure-Feature,valueonly)",
    ]
    said = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return [line for line in said.splitlines() if line]


def references(perdure: Stage, project_id: str) -> list[str]:
    """All that the workspace's own repository calls by a name."""
    command = [
        "git",
        "-C",
        str(perdure.data / "workspaces" / project_id),
        "for-each-ref",
        "--format=%(refname)",
    ]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()


def is_clean(perdure: Stage, project_id: str) -> bool:
    folder = perdure.data / "workspaces" / project_id
    command = ["git", "-C", str(folder), "status", "--porcelain"]
    return not subprocess.run(command, check=True, capture_output=True, text=True).stdout


async def test_a_brief_becomes_a_list_and_every_feature_is_committed_once(perdure: Stage) -> None:
    project_id = await create(perdure, name="alphabet", brief="Write the letters. [alphabet]")
    seen = await once(perdure, project_id, "COMPLETED")
    assert seen["phase"] == "done"
    assert seen["sessions"] == 7, "the list, five features, the last proof"
    assert log_of(perdure, project_id) == LETTERS
    assert is_clean(perdure, project_id)
    handoff = seen["handoff"]
    assert isinstance(handoff, dict)
    assert handoff["decisions"] == ["plain files", *(f"keep {name}" for name in LETTERS)]
    progress = (perdure.data / "workspaces" / project_id / "progress.md").read_text()
    assert "[v] part_e" in progress


async def test_a_claim_without_the_work_is_tried_again_with_its_evidence(perdure: Stage) -> None:
    project_id = await create(
        perdure,
        name="claims",
        brief="Build it.",
        features=[feature("stubborn"), feature("one", priority=200)],
    )
    seen = await once(perdure, project_id, "COMPLETED")
    assert log_of(perdure, project_id) == ["stubborn", "one"]
    async with httpx.AsyncClient(base_url=perdure.perdure.url) as http:
        (stubborn, _) = (await http.get(f"/api/projects/{project_id}/features")).json()["features"]
        listed = (await http.get("/api/projects")).json()["projects"]
        runs = (await http.get("/api/runs", params={"project_id": project_id})).json()["runs"]
        stream = await http.get(f"/api/projects/{project_id}/stream", timeout=30)
    assert stubborn["attempts"] == 2
    assert stubborn["verified"] is True
    (row,) = [row for row in listed if row["project_id"] == project_id]
    assert (row["committed"], row["features_total"], row["status"]) == (2, 2, "COMPLETED")
    assert row["sessions"] == seen["sessions"] == 5
    assert len(runs) == 10
    assert stream.text.count("event: session.started") == 5
    assert "event: project.completed" in stream.text


async def test_kills_of_all_that_works_change_nothing_in_the_outcome(perdure: Stage) -> None:
    names = ["one", "two", "three"]
    project_id = await create(
        perdure, name="killed", brief="Build.", features=[feature(name) for name in names]
    )
    for session, victims in (
        (1, ("scheduler",)),
        (2, ("executor", "toolhost")),
        (3, ("scheduler", "verifier")),
    ):

        async def look() -> dict[str, object]:
            return await card(perdure, project_id)

        await eventually(
            look, f"session {session}", fits=lambda seen, least=session: int(str(seen["sessions"])) >= least,
        )  # fmt: skip
        for victim in victims:
            perdure.perdure.kill(victim)
    await once(perdure, project_id, "COMPLETED")
    assert log_of(perdure, project_id) == names
    assert is_clean(perdure, project_id)


def side(name: str) -> dict[str, Any]:
    made = feature(name)
    return made | {"acceptance": [*made["acceptance"], check("sides.txt", name)]}


# It does not come to its end the first time, and never well.
BYE = "test -f bye.txt && echo no time && exit 1; touch bye.txt; sleep 60"


async def test_features_beside_each_other_are_merged_one_by_one_and_a_contradiction_is_solved(
    perdure: Stage,
) -> None:
    """Whatever is killed meanwhile. Both sides write one file, each its own way; the third one needs the first."""
    project_id = await create(
        perdure,
        name="sides",
        brief="Build.",
        features=[side("left"), side("right"), feature("behind", depends_on=["left"])],
        concurrency=2,
        hooks={"before_remove": ["sh", "-c", BYE]},
    )
    lanes = [perdure.data / "workspaces" / f"{project_id}-lane-{lane}" for lane in (0, 1)]

    async def look() -> dict[str, Any]:
        return await card(perdure, project_id)

    both = await eventually(look, "two at once", fits=lambda seen: len(seen["active"]) == 2, every_s=0.05)
    assert {str(active["feature_id"]) for active in both["active"]} == {"left", "right"}
    await eventually(look, "a merge", fits=lambda seen: seen["phase"] == "commit", every_s=0.05)
    for victim in ("toolhost", "executor", "scheduler"):
        perdure.perdure.kill(victim)

    async def within_the_hooks() -> bool:
        return all((lane / "bye.txt").exists() for lane in lanes)

    await once(perdure, project_id, "COMPLETED", meanwhile=within_the_hooks)
    perdure.perdure.kill("toolhost")
    await once(perdure, project_id, "COMPLETED")

    async def gone() -> bool:
        return not any(lane.exists() for lane in lanes)

    await eventually(gone, "nobody needs the lanes any more")
    history = log_of(perdure, project_id)
    assert sorted(history) == ["behind", "left", "right"], "one commit a feature, whoever was killed"
    assert history.index("left") < history.index("behind")
    assert is_clean(perdure, project_id)
    home = perdure.data / "workspaces" / project_id
    assert (home / "sides.txt").read_text() == "left and right\n"
    assert {path.name for path in home.glob("*.txt")} == {"left.txt", "right.txt", "behind.txt", "sides.txt"}
    assert "[v] " in (home / "progress.md").read_text()
    async with httpx.AsyncClient(base_url=perdure.perdure.url, timeout=30) as http:
        told = (await http.get(f"/api/projects/{project_id}/stream")).text
        listed = (await http.get(f"/api/projects/{project_id}/features")).json()["features"]
        runs = (await http.get("/api/runs", params={"project_id": project_id, "limit": 100})).json()["runs"]
    assert told.count('"outcome":"unfinished"') == 1
    assert "does not go together with what was committed meanwhile: MERGE_CONFLICT" in told
    assert "these files contradict each other: sides.txt" in told
    assert sorted(one["attempts"] for one in listed) == [1, 1, 2]
    assert sum("bring it to the project" in run["goal"] for run in runs) == 4
    assert len({run["workspace"] for run in runs}) == 3, "the project's own, and one for each lane"
    assert sum("take leave of lane" in run["goal"] for run in runs) == 2, "emptied once, whoever was killed"
    assert told.count("hook before_remove failed") == 0, "it stands in the way of nothing"
    assert told.count("workspace_command failed:\\nno time") == 2, "and is recorded"
    assert '"removed":[0,1]' in told
    assert told.count('"outcome":"removed"') == 2
    kept = [ref for ref in references(perdure, project_id) if "/perdure/left/" in ref]
    assert len(kept) == 2, "what the hooks wrote was in no commit"


# Case 133: what a hook prints counts for nothing, and however much it is, it is bounded.
RED_ONCE = """test -f seen && exit 0
touch seen; head -c 10000000 /dev/zero | tr '\\0' x; printf '{"decision": "approve"'; exit 2"""


async def test_hooks_run_around_sessions_and_one_that_must_pass_stops_its_session(perdure: Stage) -> None:
    hooks = {
        "after_create": ["sh", "-c", "echo made >> hooks.txt"],
        "before_run": ["sh", "-c", RED_ONCE],
        "after_run": ["sh", "-c", "echo no cleaning; exit 1"],
    }
    project_id = await create(
        perdure, name="hooks", brief="Build.", features=[feature("hooked")], hooks=hooks
    )
    seen = await once(perdure, project_id, "COMPLETED")
    assert log_of(perdure, project_id) == ["hooked"]
    assert (perdure.data / "workspaces" / project_id / "hooks.txt").read_text() == "made\n" * 2
    async with httpx.AsyncClient(base_url=perdure.perdure.url, timeout=30) as http:
        told = (await http.get(f"/api/projects/{project_id}/stream")).text
        runs = (await http.get("/api/runs", params={"project_id": project_id})).json()["runs"]
        logs = [(await http.get(f"/api/runs/{run['run_id']}/events")).text for run in runs]
    assert seen["sessions"] == 4, "one that a hook stopped, the baseline, the feature, the last proof"
    assert "HOOK_FAILED: hook before_run failed" in told
    assert len(told) < 200_000
    assert any("no cleaning" in log and "run.completed" in log for log in logs)


async def test_a_silent_session_is_tried_again_and_a_slow_check_is_no_silence(perdure: Stage) -> None:
    slow = {"kind": "command", "argv": ["sh", "-c", "sleep 8; grep -q 'this is quiet' quiet.txt"]}
    project_id = await create(
        perdure,
        name="quiet",
        brief="Build.",
        features=[feature("quiet") | {"acceptance": [slow]}],
        limits={"stall_s": 5},
    )
    await once(perdure, project_id, "COMPLETED")
    assert log_of(perdure, project_id) == ["quiet"]
    async with httpx.AsyncClient(base_url=perdure.perdure.url, timeout=30) as http:
        told = (await http.get(f"/api/projects/{project_id}/stream")).text
        runs = (await http.get("/api/runs", params={"project_id": project_id})).json()["runs"]
    assert "event: session.stalled" in told
    assert "STALLED: it showed no sign of life for" in told
    assert [run["status"] for run in runs].count("CANCELLED") == told.count("event: session.stalled")
    verified = [run for run in runs if run["status"] == "COMPLETED"]
    assert len(verified) >= 5, "what takes longer than the limit and lives is never ended"


async def test_the_command_line_starts_and_follows_a_project(perdure: Stage, tmp_path: Path) -> None:
    given = tmp_path / "project.json"
    given.write_text(json.dumps({"name": "cli", "brief": "Build.", "features": [feature("one")]}))

    async def perdure_project(*words: str) -> tuple[int, str]:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "deploy.cli", "project", *words),
            env={**os.environ, "PERDURE_URL": perdure.perdure.url},
            stdout=asyncio.subprocess.PIPE,
        )
        said, _ = await process.communicate()
        return process.returncode or 0, said.decode()

    code, said = await perdure_project("create", "--file", str(given))
    assert code == 0
    project_id = said.split()[0]
    code, said = await perdure_project("show", project_id, "--watch")
    assert code == 0
    assert "feature.state_changed" in said
    assert "COMPLETED, done" in said
    code, said = await perdure_project("list", "--json")
    assert project_id in said
    code, _ = await perdure_project("pause", project_id)
    assert code == 1
