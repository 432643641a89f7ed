"""What the runtime does in a project's workspace: a commit is made once and holds what was judged; nothing is lost."""

from __future__ import annotations

import asyncio
import dataclasses
import subprocess
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path

import pytest

from libs.chassis.effects import Stopped
from libs.contracts.workspaces import (
    WORKSPACE_COMMAND,
    WORKSPACE_COMMIT,
    WORKSPACE_PREPARE,
    WORKSPACE_RESTORE,
    WORKSPACE_SET_ASIDE,
)
from services.toolhost.errands import perform
from services.toolhost.marks import marked
from services.toolhost.tools import Outcome, ToolContext
from tests.unit.toolhost_workspace import context

TRAILERS = {"Perdure-Feature": "cart", "Perdure-Session": "run_0_1", "Perdure-Evidence": "ab" * 32}


@pytest.fixture
async def tools(tmp_path: Path) -> AsyncIterator[ToolContext]:
    made = context(tmp_path)
    await made.repository.ensure()
    async with aclosing(made.processes):
        yield made


async def commit(tools: ToolContext, **more: object) -> Outcome:
    arguments: dict[str, object] = {"message": "cart: A basket.", "trailers": TRAILERS, **more}
    return await perform(WORKSPACE_COMMIT, tools, arguments)


async def baseline(tools: ToolContext) -> str:
    """The workspace with a first commit; its name."""
    assert (await perform(WORKSPACE_PREPARE, tools, {})).ok
    done = await commit(tools, message="baseline", trailers={"Perdure-Session": "run_0_0"})
    assert done.ok, done.output
    return str(done.metadata["commit"])


def git(tools: ToolContext, *arguments: str) -> str:
    command = ["git", "-C", str(tools.guard.root), *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def put(tools: ToolContext, path: str, text: str) -> None:
    (tools.guard.root / path).write_text(text)


async def test_a_commit_has_its_trailers_and_is_found_by_them(tools: ToolContext) -> None:
    await baseline(tools)
    put(tools, "cart.py", "total = 0\n")
    first = await commit(tools, files={"progress.md": "# shop\n"})
    again = await commit(tools)
    assert first.metadata["found"] is False
    assert again.metadata["found"] is True
    assert again.metadata["commit"] == first.metadata["commit"] == git(tools, "rev-parse", "HEAD")
    assert git(tools, "rev-list", "--count", "HEAD") == "2"
    assert "Perdure-Feature: cart" in git(tools, "log", "-1", "--format=%(trailers)")
    assert git(tools, "show", "HEAD:progress.md") == "# shop"


async def test_what_changed_since_the_verdict_is_not_committed(tools: ToolContext) -> None:
    await baseline(tools)
    put(tools, "cart.py", "total = 0\n")
    judged = (await tools.repository.snapshot("verification")).commit
    put(tools, "cart.py", "total = 1\n")
    refused = await commit(tools, verified=judged)
    assert not refused.ok
    assert "cart.py" in refused.output
    put(tools, "cart.py", "total = 0\n")
    # An earlier try was killed between its files and its commit: they are no change.
    put(tools, "progress.md", "half\n")
    assert (await commit(tools, verified=judged, files={"progress.md": "whole\n"})).ok


async def test_leftovers_go_to_a_side_ref_and_come_back_on_top_of_newer_work(tools: ToolContext) -> None:
    head = await baseline(tools)
    put(tools, "half.py", "begun\n")
    arguments: dict[str, object] = {
        "ref": "refs/perdure/session/3",
        "message": "left over",
        "trailers": {"Perdure-Session": "run_0_3"},
        "head": head,
    }
    aside = await perform(WORKSPACE_SET_ASIDE, tools, arguments)
    assert aside.metadata["side_ref"] == "refs/perdure/session/3"
    assert not (tools.guard.root / "half.py").exists()
    assert git(tools, "status", "--porcelain") == ""
    assert (await perform(WORKSPACE_SET_ASIDE, tools, arguments)).metadata == aside.metadata
    put(tools, "other.py", "done\n")
    assert (await commit(tools)).ok
    assert (await perform(WORKSPACE_RESTORE, tools, {"ref": "refs/perdure/session/3"})).ok
    assert (tools.guard.root / "half.py").read_text() == "begun\n"
    assert (tools.guard.root / "other.py").read_text() == "done\n"


async def test_commits_of_the_agent_of_a_failed_session_do_not_stay_on_the_branch(tools: ToolContext) -> None:
    head = await baseline(tools)
    put(tools, "mine.py", "")
    git(tools, "add", ".")
    git(tools, "-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "Perdure-Feature: cart")
    aside = await perform(
        WORKSPACE_SET_ASIDE,
        tools,
        {"ref": "refs/perdure/session/4", "message": "left over", "trailers": {}, "head": head},
    )
    assert aside.ok
    assert git(tools, "rev-parse", "HEAD") == head
    assert git(tools, "show", "refs/perdure/session/4^:mine.py") == ""


async def test_what_the_agent_committed_by_itself_becomes_part_of_the_features_commit(
    tools: ToolContext,
) -> None:
    head = await baseline(tools)
    put(tools, "mine.py", "")
    git(tools, "add", ".")
    git(tools, "-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "all by myself")
    put(tools, "more.py", "")
    done = await commit(tools, head=head)
    assert done.ok, done.output
    assert git(tools, "rev-parse", "HEAD^") == head
    assert git(tools, "show", "--name-only", "--format=", "HEAD") == "mine.py\nmore.py"


async def test_what_a_hook_leaves_behind_a_commit_goes_to_a_ref_of_its_own(tools: ToolContext) -> None:
    head = await baseline(tools)
    put(tools, "report.txt", "written by a hook\n")
    ref = "refs/perdure/after_run/3"
    arguments: dict[str, object] = {"ref": ref, "message": "left over", "trailers": {}, "head": "HEAD"}
    aside = await perform(WORKSPACE_SET_ASIDE, tools, arguments)
    assert (aside.metadata["side_ref"], aside.metadata["head"]) == (ref, head)
    assert git(tools, "status", "--porcelain") == ""
    assert git(tools, "show", f"{ref}:report.txt") == "written by a hook"


async def test_leftovers_that_do_not_fit_any_more_stay_where_they_are(tools: ToolContext) -> None:
    head = await baseline(tools)
    put(tools, "a.py", "one\n")
    ref = "refs/perdure/session/5"
    await perform(WORKSPACE_SET_ASIDE, tools, {"ref": ref, "message": "left", "trailers": {}, "head": head})
    put(tools, "a.py", "another\n")
    assert (await commit(tools)).ok
    restored = await perform(WORKSPACE_RESTORE, tools, {"ref": ref})
    assert not restored.ok
    assert git(tools, "status", "--porcelain") == ""
    assert (tools.guard.root / "a.py").read_text() == "another\n"


async def test_a_workspace_begins_from_a_folder_once(tools: ToolContext, tmp_path: Path) -> None:
    seed = tmp_path / "seed"
    (seed / "src").mkdir(parents=True)
    (seed / "src" / "a.py").write_text("a\n")
    began = await perform(WORKSPACE_PREPARE, tools, {"seed_dir": str(seed)})
    assert began.metadata == {"began": True}
    assert (await commit(tools)).ok
    put(tools, "src/a.py", "changed\n")
    again = await perform(WORKSPACE_PREPARE, tools, {"seed_dir": str(seed)})
    assert again.metadata == {"began": False}
    assert (tools.guard.root / "src" / "a.py").read_text() == "changed\n"


async def test_a_command_of_the_project_tells_how_it_ended(tools: ToolContext) -> None:
    failed = await perform(WORKSPACE_COMMAND, tools, {"argv": ["sh", "-c", "echo no; exit 3"]})
    assert not failed.ok
    assert "no" in failed.output
    assert failed.metadata["exit_code"] == 3


async def hook(tools: ToolContext, script: str) -> Outcome:
    return await perform(WORKSPACE_COMMAND, tools, {"argv": ["sh", "-c", script]})


async def test_a_hook_is_judged_by_its_exit_code_whatever_it_prints(tools: ToolContext) -> None:
    said = await hook(tools, """printf '{"decision": "approve"'; exit 2""")
    assert not said.ok
    assert said.metadata["exit_code"] == 2
    assert '{"decision": "approve"' in said.output


async def test_ten_megabytes_of_a_hook_are_bounded_and_the_end_is_kept(tools: ToolContext) -> None:
    said = await hook(tools, "head -c 10000000 /dev/zero | tr '\\0' x; echo; echo the end")
    assert said.ok
    assert len(said.output) <= tools.output_chars_max
    assert "the end" in said.output
    assert int(str(said.metadata["dropped_bytes"])) > 9_000_000


async def test_a_hook_that_hangs_is_ended_and_says_that_it_was_its_time(tools: ToolContext) -> None:
    said = await perform(
        WORKSPACE_COMMAND,
        dataclasses.replace(tools, timeout_s=0.3),
        {"argv": ["sh", "-c", "echo begun; sleep 600"]},
    )
    assert not said.ok
    assert said.metadata["timed_out"] is True
    assert "begun" in said.output
    assert "timed out after 0.3 s" in said.output


async def test_a_hook_whose_program_is_gone_fails(tools: ToolContext) -> None:
    said = await perform(WORKSPACE_COMMAND, tools, {"argv": ["./hooks/before_run.sh"]})
    assert not said.ok
    assert said.output


async def test_what_an_agent_left_of_a_failed_beginning_leads_the_next_one_nowhere(
    tools: ToolContext, tmp_path: Path
) -> None:
    seed, outside = tmp_path / "seed", tmp_path / "outside"
    (seed / "docs").mkdir(parents=True)
    outside.mkdir()
    for path in (seed / "README.md", seed / "docs" / "a.md"):
        path.write_text("of the seed\n")
    (seed / "link").symlink_to("README.md")
    (outside / "mine").write_text("of the machine\n")
    root = tools.guard.root
    (root / "README.md").symlink_to(outside / "mine")
    (root / "docs").symlink_to(outside)
    for _ in range(2):
        # Again behind a kill, too.
        began = await perform(WORKSPACE_PREPARE, tools, {"seed_dir": str(seed)})
        assert began.ok, began.output
    assert (outside / "mine").read_text() == "of the machine\n"
    assert not (outside / "a.md").exists()
    assert (root / "docs" / "a.md").read_text() == (root / "link").read_text() == "of the seed\n"

    # Git outside of the sandbox never comes near a repository that an agent may have configured.
    refused = await perform(WORKSPACE_PREPARE, tools, {"git_url": "https://127.0.0.1:9/shop.git"})
    assert not refused.ok
    assert "could not be cloned" in refused.output
    assert "127.0.0.1" not in (root / ".git" / "config").read_text()


async def test_a_clone_that_hangs_ends_with_its_call(tools: ToolContext) -> None:
    asked = asyncio.Event()

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.set()
        await reader.read()
        writer.close()

    async with await asyncio.start_server(silent, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        wanted: dict[str, object] = {"git_url": f"https://127.0.0.1:{port}/shop.git"}
        stop = asyncio.Event()
        call = dataclasses.replace(tools, stop=stop)
        clone = asyncio.create_task(perform(WORKSPACE_PREPARE, call, wanted))
        async with asyncio.timeout(20):
            await asked.wait()
            stop.set()
            with pytest.raises(Stopped):
                await clone
    assert marked(tools.call_id) == []
