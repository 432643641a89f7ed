"""Commits travel between the workspaces of a project: what a lane made comes to the branch once, or says what contradicts it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, aclosing
from pathlib import Path

import pytest

from libs.contracts.workspaces import (
    WORKSPACE_BEGIN,
    WORKSPACE_COMMIT,
    WORKSPACE_GATHER,
    WORKSPACE_LEAVE,
    WORKSPACE_MERGE,
    WORKSPACE_PREPARE,
    WORKSPACE_RESTORE,
    WORKSPACE_SET_ASIDE,
)
from services.toolhost.errands import perform
from services.toolhost.tools import Outcome, ToolContext
from tests.fakes.objects import Objects
from tests.unit.toolhost_workspace import context, git

BRANCH = "project_0_1/branch"
FILES = {"progress.md": "# shop\n", "features.json": "{}\n"}


class Shop:
    """A project's workspace and two lanes, each a folder of its own; they share nothing but the store."""

    def __init__(self, home: ToolContext, lanes: list[ToolContext], store: Objects) -> None:
        self.home, self.lanes, self.store = home, lanes, store
        self.head = ""

    async def baseline(self) -> None:
        assert (await perform(WORKSPACE_PREPARE, self.home, {})).ok
        put(self.home, "shop.py", "goods = []\n\n\nbasket = []\n")
        done = await self.commit(self.home, "baseline", files=FILES, offer=BRANCH)
        self.head = str(done.metadata["commit"])

    async def begin(self, lane: int) -> Outcome:
        return await perform(WORKSPACE_BEGIN, self.lanes[lane], {"object": BRANCH, "head": self.head})

    async def commit(self, where: ToolContext, session: str, **more: object) -> Outcome:
        trailers = {"Perdure-Feature": session, "Perdure-Session": session}
        done = await perform(WORKSPACE_COMMIT, where, {"message": session, "trailers": trailers, **more})
        assert done.ok, done.output
        return done

    async def built(self, lane: int, session: str) -> None:
        """The lane's session is verified and committed there."""
        await self.commit(
            self.lanes[lane],
            session,
            head=self.head,
            kept=list(FILES),
            offer=f"project_0_1/feature/{session}",
            ref=f"refs/perdure/session/{session}",
        )

    async def merge(self, session: str, head: str | None = None) -> Outcome:
        arguments: dict[str, object] = {
            "branch": BRANCH,
            "object": f"project_0_1/feature/{session}",
            "ref": f"refs/perdure/session/{session}",
            "head": head or self.head,
        }
        return await perform(WORKSPACE_MERGE, self.home, arguments)


@pytest.fixture
async def shop(tmp_path: Path) -> AsyncIterator[Shop]:
    store = Objects()
    async with AsyncExitStack() as stack:
        made: list[ToolContext] = []
        for name in ("home", "one", "two"):
            (tmp_path / name).mkdir()
            made.append(context(tmp_path / name, objects=store))
            await made[-1].repository.ensure()
            await stack.enter_async_context(aclosing(made[-1].processes))
        shop = Shop(made[0], made[1:], store)
        await shop.baseline()
        yield shop


def put(where: ToolContext, path: str, text: str) -> None:
    (where.guard.root / path).write_text(text)


def said(where: ToolContext, *arguments: str) -> str:
    return git(where.guard.root, *arguments).decode().strip()


async def test_what_two_lanes_made_comes_to_the_branch_one_after_the_other(shop: Shop) -> None:
    base = shop.head
    said(shop.home, "branch", "--move", "trunk")
    for lane, (session, path) in enumerate((("1", "one.py"), ("2", "two.py"))):
        assert (await shop.begin(lane)).ok
        put(shop.lanes[lane], path, "done\n")
        # Both have their own idea of how far the project is: that never contradicts anything.
        put(shop.lanes[lane], "progress.md", f"# by lane {lane}\n")
        await shop.built(lane, session)
    for session in ("2", "1"):
        for _ in range(2):
            # Again behind a kill: the same tree, the same commit.
            merged = await shop.merge(session)
            assert merged.ok, merged.output
        done = await shop.commit(shop.home, session, head=shop.head, files=FILES, offer=BRANCH)
        again = await shop.commit(shop.home, session, head=shop.head, files=FILES, offer=BRANCH)
        assert again.metadata["commit"] == done.metadata["commit"]
        assert again.metadata["found"] is True
        shop.head = str(done.metadata["commit"])
    assert said(shop.home, "log", "--format=%s", "trunk").split() == ["1", "2", "baseline"]
    assert said(shop.home, "rev-parse", "HEAD~2") == base
    assert said(shop.home, "ls-files").split() == [
        "features.json",
        "one.py",
        "progress.md",
        "shop.py",
        "two.py",
    ]
    assert said(shop.home, "show", "HEAD:progress.md") == "# shop"
    assert said(shop.home, "status", "--porcelain") == ""
    assert (await shop.begin(0)).ok
    assert said(shop.lanes[0], "rev-parse", "HEAD") == shop.head
    assert said(shop.lanes[0], "status", "--porcelain") == ""


async def test_a_contradiction_names_the_files_and_leaves_the_branch_alone(shop: Shop) -> None:
    for lane, session in enumerate(("1", "2")):
        assert (await shop.begin(lane)).ok
        put(shop.lanes[lane], "shop.py", f"goods = [{session}]\n\n\nbasket = []\n")
        await shop.built(lane, session)
    assert (await shop.merge("1")).ok
    shop.head = str((await shop.commit(shop.home, "1", head=shop.head, offer=BRANCH)).metadata["commit"])
    refused = await shop.merge("2")
    assert not refused.ok
    assert refused.metadata["conflicts"] == ["shop.py"]
    assert "shop.py" in refused.output
    assert said(shop.home, "status", "--porcelain") == ""
    assert said(shop.home, "rev-parse", "HEAD") == shop.head

    # The next session, in whichever lane, begins from the branch and has both versions before it.
    assert (await shop.begin(0)).ok
    arguments = {"ref": "refs/perdure/session/2", "object": "project_0_1/feature/2"}
    for _ in range(2):
        restored = await perform(WORKSPACE_RESTORE, shop.lanes[0], dict(arguments))
        assert restored.metadata["restored"] is True
        assert restored.ok, "a contradiction is work for its agent"
        assert "shop.py" in restored.output
    text = (shop.lanes[0].guard.root / "shop.py").read_text()
    assert "goods = [1]" in text
    assert "goods = [2]" in text
    put(shop.lanes[0], "shop.py", "goods = [1, 2]\n\n\nbasket = []\n")
    await shop.built(0, "3")
    assert (await shop.merge("3")).ok
    await shop.commit(shop.home, "3", head=shop.head, offer=BRANCH)
    assert said(shop.home, "show", "HEAD:shop.py").startswith("goods = [1, 2]")


async def test_what_a_lane_left_over_comes_back_in_another_one(shop: Shop) -> None:
    assert (await shop.begin(0)).ok
    put(shop.lanes[0], "half.py", "begun\n")
    ref, name = "refs/perdure/session/7", "project_0_1/feature/cart"
    aside: dict[str, object] = {
        "ref": ref,
        "message": "left",
        "trailers": {},
        "head": shop.head,
        "offer": name,
    }
    assert (await perform(WORKSPACE_SET_ASIDE, shop.lanes[0], aside)).metadata["side_ref"] == ref
    assert (await shop.begin(1)).ok
    restore: dict[str, object] = {"ref": ref, "object": name}
    shop.store.away = True
    assert not (await perform(WORKSPACE_RESTORE, shop.lanes[1], restore)).ok, "it is asked for again"
    shop.store.away = False
    assert (await perform(WORKSPACE_RESTORE, shop.lanes[1], restore)).ok
    assert (shop.lanes[1].guard.root / "half.py").read_text() == "begun\n"


async def test_what_was_left_over_and_is_gone_for_ever_holds_up_no_session(shop: Shop) -> None:
    assert (await shop.begin(0)).ok
    gone: dict[str, object] = {"ref": "refs/perdure/session/7", "object": "project_0_1/feature/cart"}
    restored = await perform(WORKSPACE_RESTORE, shop.lanes[0], gone)
    assert (restored.ok, restored.metadata["restored"]) == (True, False)
    assert "is there no more" in restored.output


async def test_a_lane_begins_from_its_base_whatever_stands_in_it(shop: Shop) -> None:
    assert (await shop.begin(0)).ok
    put(shop.lanes[0], "shop.py", "broken\n")
    put(shop.lanes[0], "debris.txt", "left by a session that was killed\n")
    began = await shop.begin(0)
    assert began.ok
    assert began.metadata["head"] == said(shop.lanes[0], "rev-parse", "HEAD") == shop.head
    assert said(shop.lanes[0], "status", "--porcelain") == ""
    shop.head = "ab" * 20
    gone = await shop.begin(0)
    assert not gone.ok
    assert shop.head in gone.output


async def test_all_that_only_a_lane_holds_is_at_home_before_it_goes(shop: Shop) -> None:
    left: dict[str, object] = {
        "object": "project_0_1/lane/0",
        "ref": "refs/perdure/left/9",
        "message": "left",
        "head": shop.head,
    }
    kept: dict[str, object] = {"object": "project_0_1/lane/0", "under": "refs/perdure/lane/0"}
    assert (await shop.begin(0)).ok
    nothing = await perform(WORKSPACE_LEAVE, shop.lanes[0], left)
    assert nothing.metadata["offered"] is False, "the branch holds all of it"
    put(shop.lanes[0], "half.py", "begun\n")
    aside: dict[str, object] = {
        "ref": "refs/perdure/session/7",
        "message": "left",
        "trailers": {},
        "head": shop.head,
    }
    assert (await perform(WORKSPACE_SET_ASIDE, shop.lanes[0], aside)).ok
    # What the next agent has put on a branch of its own, committed, and not even added, when its session is cancelled.
    said(shop.lanes[0], "checkout", "--quiet", "-b", "idea")
    put(shop.lanes[0], "idea.py", "good\n")
    said(shop.lanes[0], "add", "idea.py")
    said(shop.lanes[0], "commit", "--quiet", "-m", "idea")
    said(shop.lanes[0], "checkout", "--quiet", "--detach", shop.head)
    put(shop.lanes[0], "late.py", "too late\n")
    said(shop.home, "update-ref", "refs/perdure/session/7", shop.head)
    before = said(shop.home, "rev-parse", "HEAD")
    for _ in range(2):
        # Again behind a kill.
        assert (await perform(WORKSPACE_LEAVE, shop.lanes[0], left)).metadata["offered"] is True
        assert (await perform(WORKSPACE_GATHER, shop.home, kept)).ok
    for ref, file in (
        ("perdure/session/7", "half.py"),
        ("heads/idea", "idea.py"),
        ("perdure/left/9", "late.py"),
    ):
        assert file in said(shop.home, "ls-tree", "--name-only", f"refs/perdure/lane/0/{ref}").split()
    assert said(shop.home, "rev-parse", "HEAD", "refs/perdure/session/7").split() == [before, shop.head], (
        "nothing of the project's own is replaced"
    )
    kept["object"] = "project_0_1/lane/5"
    assert not (await perform(WORKSPACE_GATHER, shop.home, kept)).ok, "what is gone is nothing that was kept"


async def test_a_bundle_that_is_a_link_leads_nowhere(shop: Shop, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("of the machine\n")
    assert (await shop.begin(0)).ok
    (shop.lanes[0].guard.root / ".git" / "perdure-offer.bundle").symlink_to(secret)
    put(shop.lanes[0], "one.py", "done\n")
    await shop.built(0, "1")
    assert secret.read_text() == "of the machine\n"
    assert (await shop.merge("1")).ok


async def test_a_merge_finds_the_branch_again_when_the_workspace_was_lost_with_its_machine(
    shop: Shop,
) -> None:
    for lane, session in enumerate(("1", "2")):
        assert (await shop.begin(lane)).ok
        put(shop.lanes[lane], f"{session}.py", "done\n")
        await shop.built(lane, session)
    assert (await shop.merge("1")).ok
    done = await shop.commit(shop.home, "1", head=shop.head, offer=BRANCH)
    # What comes back is the workspace as it was before the commit.
    said(shop.home, "reset", "--hard", "--quiet", shop.head)
    said(shop.home, "update-ref", "-d", "refs/perdure/branch")
    said(shop.home, "reflog", "expire", "--expire=now", "--all")
    said(shop.home, "gc", "--quiet", "--prune=now")
    shop.head = str(done.metadata["commit"])
    merged = await shop.merge("2")
    assert merged.ok, merged.output
    assert {"1.py", "2.py"} <= set(said(shop.home, "ls-files").split())


async def test_a_repository_that_ignores_a_file_of_the_runtime_has_commits_in_lanes_too(shop: Shop) -> None:
    put(shop.home, ".gitignore", "*.json\n")
    said(shop.home, "rm", "--quiet", "--cached", "features.json")
    done = await shop.commit(shop.home, "ignoring", head=shop.head, files=FILES, offer=BRANCH)
    shop.head = str(done.metadata["commit"])
    assert (await shop.begin(0)).ok
    put(shop.lanes[0], "one.py", "done\n")
    put(shop.lanes[0], "progress.md", "# by the lane\n")
    await shop.built(0, "1")
    assert said(shop.lanes[0], "show", "HEAD:progress.md") == "# shop"


def repository(inside: Path) -> None:
    """A repository with a commit, and another one inside that has none."""
    (inside / "sub").mkdir(parents=True)
    (inside / "app.js").write_text("done\n")
    (inside / "app.log").write_text("noise\n")
    for arguments in (("init", "--quiet"), ("add", "--all"), ("commit", "--quiet", "-m", "mine")):
        git(inside, *arguments)
    (inside / "sub" / "more.js").write_text("more\n")
    git(inside / "sub", "init", "--quiet")


async def test_files_of_a_repository_inside_come_along_with_the_commit(shop: Shop) -> None:
    put(shop.home, ".gitignore", "*.log\n")
    repository(shop.home.guard.root / "api")
    done = await shop.commit(shop.home, "ignoring", head=shop.head, files=FILES, offer=BRANCH)
    shop.head = str(done.metadata["commit"])
    assert (await shop.begin(0)).ok
    root = shop.lanes[0].guard.root
    assert (root / "api" / "sub" / "more.js").read_text() == "more\n"
    repository(root / "web")
    # Its agent has named it to git already.
    said(shop.lanes[0], "add", "web")
    put(shop.lanes[0], "wanted.log", "done\n")
    said(shop.lanes[0], "add", "--force", "wanted.log")
    said(shop.lanes[0], "commit", "--quiet", "-m", "web")
    await shop.built(0, "1")
    assert (await shop.merge("1")).ok
    files = said(shop.home, "ls-files", "web").split()
    assert files == ["web/app.js", "web/sub/more.js"], "what is ignored is not"
    assert (shop.home.guard.root / "wanted.log").exists(), "except where its agent wants it"


async def test_a_repository_inside_is_left_over_and_leads_into_no_other_feature(shop: Shop) -> None:
    assert (await shop.begin(0)).ok
    repository(shop.lanes[0].guard.root / "web")
    ref = "refs/perdure/session/7"
    aside: dict[str, object] = {"ref": ref, "message": "left", "trailers": {}, "head": shop.head}
    assert (await perform(WORKSPACE_SET_ASIDE, shop.lanes[0], aside)).metadata["side_ref"] == ref
    assert not (shop.lanes[0].guard.root / "web").exists()
    assert (await perform(WORKSPACE_RESTORE, shop.lanes[0], {"ref": ref})).ok
    assert (shop.lanes[0].guard.root / "web" / "sub" / "more.js").read_text() == "more\n"


async def test_a_repository_inside_without_a_file_is_named(shop: Shop) -> None:
    (shop.home.guard.root / "empty").mkdir()
    git(shop.home.guard.root / "empty", "init", "--quiet")
    with pytest.raises(AssertionError, match=r"empty: a git repository of its own without any file"):
        await shop.commit(shop.home, "1", head=shop.head)
