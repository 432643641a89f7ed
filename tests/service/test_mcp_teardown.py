"""What is left of MCP servers when their host ends: nothing (field case 184). A file of its own, because two hosts of one
process would share their control groups."""

from __future__ import annotations

import shutil
from pathlib import Path

from deploy.dev.nats_server import NatsServer
from tests.fakes.waiting import until
from tests.service.mcp_host import hosting, processes_of, rogue


async def test_servers_that_ignore_every_sign_are_killed_on_close_also_while_they_start(
    nats_node: NatsServer, tmp_path: Path
) -> None:
    sandbox = "auto" if shutil.which("bwrap") else "none"
    servers = {
        "stubborn": rogue("stubborn", "floods"),
        "starting": rogue("stubborn", "mute", handshake=True, start_timeout_s=600),
    }
    async with hosting(nats_node, tmp_path, servers, sandbox=sandbox) as guest:
        await guest.offered("mcp_stubborn_look")
        assert (await guest.do("mcp_stubborn_look")).ok
        assert processes_of("stubborn")
        await until(lambda: processes_of("starting"), "the other one starts")
    assert not processes_of("stubborn")
    assert not processes_of("starting")
    assert sorted(path.name for path in (tmp_path / ".perdure-git" / "mcp" / "stubborn").iterdir()) == ["pid"]
