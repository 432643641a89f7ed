"""The files of a workspace over HTTP: from the host that holds it, from its successor, from its last snapshot."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import httpx
import msgspec
import pytest

from libs.bus.ports import Bus, Draft, LogKey
from libs.contracts.clock import rfc3339
from libs.contracts.envelope import Event
from libs.contracts.events import WorkspaceAttached
from libs.contracts.ids import workspace_id
from libs.contracts.looks import PART_BYTES_MAX
from libs.contracts.tools import WORKSPACE_SNAPSHOT
from libs.contracts.workspaces import Saved
from tests.service.gateway_served import Served, created
from tests.service.hosting_owner import Owner, host_of, owned_run, toolhost
from tests.service.test_gateway_problems import enveloped, spoken

LARGE = bytes(number * number % 251 for number in range(2 * PART_BYTES_MAX + 17))


async def working(bus: Bus, root: Path) -> Owner:
    """A run that has its workspace, as its executor would leave it."""
    folder = root / "project"
    folder.mkdir(parents=True)
    (folder / "kept.txt").write_bytes(b"as it was\n")
    host = await host_of(bus, shared=False)
    owner = await owned_run(bus)
    await owner.attach(host.boot)
    await recorded(owner, host.boot, root=host.root)
    return owner


async def recorded(owner: Owner, boot: str, **changes: object) -> None:
    """The attachment in the workspace's log and in the run's."""
    key = LogKey("local", workspace_id(1, "local", owner.workspace))
    body = msgspec.structs.replace(
        WorkspaceAttached(workspace_id=key.log_id, host=boot, replica="toolhost-1", baseline=owner.baseline),
        **changes,
    )
    tail = await owner.bus.log.tail(key)
    assert tail is not None
    event = Event(tail.header.last + 1, key.log_id, rfc3339(owner.clock.now()), body)
    await owner.bus.log.append(Draft(key, tail.header.stream_sequence, [event], 0, "ATTACHED"))
    owner.folded = await owner.runs.commit(owner.folded, [body])


def fill(folder: Path) -> None:
    (folder / "src").mkdir()
    (folder / "src" / "a b.py").write_bytes(b"print('\xc3\xa9')\r\n")
    (folder / "large.bin").write_bytes(LARGE)
    (folder / "empty").write_bytes(b"")
    (folder / "page.html").write_bytes(b"<script>alert(1)</script>")
    (folder / os.fsdecode(b"raw\xff.txt")).write_bytes(b"raw")
    (folder / "link").symlink_to("/etc/passwd")
    (folder / ".git").mkdir()
    (folder / ".git" / "config").write_text("[core]")
    (folder / "kept.txt").write_bytes(b"changed\n")


async def test_the_files_of_a_workspace_are_listed_and_downloaded_byte_for_byte(
    bus: Bus, client: httpx.AsyncClient, served: Served, tmp_path: Path
) -> None:
    root = tmp_path / "root"
    async with toolhost(bus, root):
        owner = await working(bus, root)
        fill(root / "project")
        run = f"/api/runs/{owner.run_id}"
        await owner.end()
        found: list[dict[str, object]] = []
        cursor: str | None = ""
        while cursor is not None:
            page = (await client.get(f"{run}/artifacts", params={"limit": 3, "cursor": cursor})).json()
            found += page["artifacts"]
            cursor = page["next_cursor"]
        names = ["empty", "kept.txt", "large.bin", "link", "page.html", "raw\ufffd.txt", "src/a b.py"]
        assert [each["path"] for each in found] == names
        assert {each["path"] for each in found if each["link"]} == {"link"}
        for each in found:
            if each["link"]:
                enveloped(await client.get(str(each["href"])), 404, "NOT_FOUND")
                continue
            response = await client.get(str(each["href"]))
            assert (response.status_code, len(response.content)) == (200, each["size_bytes"])
            assert response.headers["ETag"] == f'"{hashlib.sha256(response.content).hexdigest()}"'
            assert response.headers["X-Content-Type-Options"] == "nosniff"
            assert response.headers["Content-Disposition"].startswith("attachment;")
            again = await client.get(
                str(each["href"]), headers={"If-None-Match": f'"x", W/{response.headers["ETag"]}'}
            )
            assert (again.status_code, again.content) == (304, b"")
            head = await client.head(str(each["href"]))
            assert (head.headers["Content-Length"], head.content) == (str(each["size_bytes"]), b"")
        assert (await client.get(f"{run}/artifacts/large.bin")).content == LARGE
        assert (
            (await client.get(f"{run}/artifacts/page.html")).headers["Content-Type"].startswith("text/html")
        )
        assert (await client.get(f"{run}/artifacts/raw%FF.txt")).content == b"raw"
        for path in (
            "nothing",
            "src",
            ".git/config",
            "%2e%2e/escape",
            "%2Fetc/passwd",
            "",
            "a%00b",
            "x" * 300,
        ):
            enveloped(await client.get(f"{run}/artifacts/{path}"), 404, "NOT_FOUND")
        plain = f"GET {run}/artifacts/../../../../etc/passwd HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
        enveloped(await spoken(served, plain.encode()), 404, "NOT_FOUND")
        enveloped(await client.get(f"{run}/artifacts?cursor=!"), 400, "INVALID_CURSOR")
        enveloped(await client.get(f"{run}/artifacts?limit=0"), 422, "VALIDATION_ERROR")
        assert sorted(path.name for path in (root / ".perdure-git" / "project.git").glob("tmp*")) == []


async def test_the_change_since_the_run_began_is_shown_and_narrowed(
    bus: Bus, client: httpx.AsyncClient, tmp_path: Path
) -> None:
    root = tmp_path / "root"
    async with toolhost(bus, root):
        owner = await working(bus, root)
        run = f"/api/runs/{owner.run_id}"
        assert (await client.get(f"{run}/diff")).json()["diff"] == ""
        fill(root / "project")
        shown = (await client.get(f"{run}/diff")).json()
        assert "-as it was\n+changed\n" in shown["diff"]
        assert "src/a b.py" in shown["diff"]
        assert shown["truncated"] is False
        narrowed = (await client.get(f"{run}/diff?path=kept.txt")).json()["diff"]
        assert "kept.txt" in narrowed
        assert "src/" not in narrowed
        enveloped(await client.get(f"{run}/diff?path=../x"), 404, "NOT_FOUND")
        lines = "".join(f"line {number}\n" for number in range(100_000))
        (root / "project" / "long.txt").write_text(lines)
        assert (await client.get(f"{run}/diff?path=long.txt")).json()["truncated"] is True
        # The index of whoever holds the workspace is left alone: its own diff says the same.
        attachment = owner.folded.state.attachment
        assert attachment is not None
        assert "+changed" in (await owner.read(attachment.host, "get_git_diff")).output


async def test_a_run_that_did_nothing_has_no_files(client: httpx.AsyncClient) -> None:
    run = f"/api/runs/{await created(client)}"
    assert (await client.get(f"{run}/artifacts")).json()["artifacts"] == []
    assert (await client.get(f"{run}/diff")).json()["diff"] == ""
    enveloped(await client.get(f"{run}/artifacts/a.txt"), 404, "NOT_FOUND")
    unknown = "/api/runs/run_0_00000000000000000000000000"
    for path in ("artifacts", "artifacts/a.txt", "diff"):
        enveloped(await client.get(f"{unknown}/{path}"), 404, "NOT_FOUND")


async def test_a_host_that_came_back_shows_the_folder_and_none_at_all_is_said_so(
    bus: Bus, client: httpx.AsyncClient, tmp_path: Path
) -> None:
    root = tmp_path / "root"
    async with toolhost(bus, root) as first:
        owner = await working(bus, root)
        fill(root / "project")
    run = f"/api/runs/{owner.run_id}"
    gone = await client.get(f"{run}/artifacts")
    enveloped(gone, 503, "BUS_UNAVAILABLE")
    assert "start" in gone.json()["message"]
    assert gone.headers["Retry-After"]
    async with toolhost(bus, root, known=frozenset({first})):
        assert (await client.get(f"{run}/artifacts/large.bin")).content == LARGE
        assert "+changed" in (await client.get(f"{run}/diff")).json()["diff"]
    async with toolhost(bus, tmp_path / "elsewhere", known=frozenset({first})):
        gone = await client.get(f"{run}/artifacts/kept.txt")
        enveloped(gone, 503, "BUS_UNAVAILABLE")
        assert "toolhost-1" in gone.json()["message"]


async def test_when_the_machine_is_gone_the_last_snapshot_is_shown(
    bus: Bus, client: httpx.AsyncClient, tmp_path: Path
) -> None:
    root = tmp_path / "root"
    async with toolhost(bus, root) as first:
        owner = await working(bus, root)
        fill(root / "project")
        kept = await owner.ask(first, owner.call(WORKSPACE_SNAPSHOT, {"chain": []}, WORKSPACE_SNAPSHOT))
        assert kept.ok, kept.output
        saved = msgspec.convert(
            {**kept.metadata, "run_id": owner.run_id, "at_sequence": owner.folded.state.sequence}, Saved
        )
        host = await host_of(bus, shared=False)
        await recorded(owner, first, root=host.root, held=host.root, saved=saved)
    run = f"/api/runs/{owner.run_id}"
    async with toolhost(bus, tmp_path / "elsewhere", known=frozenset({first})):
        listed = (await client.get(f"{run}/artifacts")).json()["artifacts"]
        assert [each["path"] for each in listed][:3] == ["empty", "kept.txt", "large.bin"]
        assert (await client.get(f"{run}/artifacts/large.bin")).content == LARGE
        assert (await client.get(f"{run}/artifacts/raw%FF.txt")).content == b"raw"
        enveloped(await client.get(f"{run}/artifacts/nothing"), 404, "NOT_FOUND")
        assert "-as it was\n+changed\n" in (await client.get(f"{run}/diff")).json()["diff"]
        assert list((tmp_path / "elsewhere").glob("project")) == []


async def test_a_file_that_changes_while_it_is_downloaded_breaks_the_download(
    bus: Bus, client: httpx.AsyncClient, tmp_path: Path
) -> None:
    root = tmp_path / "root"
    async with toolhost(bus, root):
        owner = await working(bus, root)
        huge = root / "project" / "huge.bin"
        huge.write_bytes(bytes(64 * PART_BYTES_MAX))
        path = f"/api/runs/{owner.run_id}/artifacts/huge.bin"
        async with client.stream("GET", path) as response:
            parts = response.aiter_bytes(1024)
            await anext(parts)
            huge.write_bytes(b"another")
            with pytest.raises(httpx.RemoteProtocolError):
                async for _ in parts:
                    pass
