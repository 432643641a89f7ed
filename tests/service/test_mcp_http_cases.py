"""MCP servers with an address: streamable HTTP over real sockets (field cases 179 and 182)."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

from deploy.dev.nats_server import NatsServer
from libs.contracts.tools import Semantics
from tests.fakes.mcp_address import Address, listening
from tests.fakes.mcp_server import BIG_CHARS
from tests.fakes.waiting import eventually
from tests.service.mcp_host import CHECKOUT, Entry, Guest, another_run, hosting

TOKEN = "bearer-of-everything"
WAYS = ("endless", "packed", "away", "cut", "silent", "refuses")


class Web:
    """The server of the official package over HTTP, on one port, in a process that can be killed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = int(probe.getsockname()[1])
        self._process: asyncio.subprocess.Process | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/mcp"

    async def start(self) -> None:
        self._process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "tests.fakes.mcp_server", str(self.port)),
            cwd=self.folder,
            env={**os.environ, "PYTHONPATH": str(CHECKOUT)},
        )
        await eventually(self._listens, "the server listens")

    async def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            await self._process.wait()
            self._process = None

    def effects(self) -> list[str]:
        file = self.folder / "effects"
        return file.read_text().splitlines() if file.exists() else []

    async def _listens(self) -> bool:
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", self.port)
        except ConnectionError:
            return False
        writer.close()
        return True


class Setting(NamedTuple):
    """A host, the servers that it knows, and a run on it."""

    guest: Guest
    web: Web
    address: Address
    elsewhere: Address


@asynccontextmanager
async def set_up(nats_node: NatsServer, root: Path) -> AsyncGenerator[Setting]:
    web = Web(root)
    await web.start()
    try:
        async with listening() as elsewhere, listening(elsewhere.url("look")) as address:
            headers = {"Authorization": "Bearer ${MCP_TOKEN}"}
            servers: dict[str, Entry] = {
                "web": {"url": web.url, "headers": headers, "trust_annotations": True, "start_timeout_s": 60},
                "old": {"url": web.url, "headers": headers, "handshake": True, "start_timeout_s": 60},
                **{way: {"url": address.url(way), "headers": headers} for way in WAYS},
            }
            async with hosting(nats_node, root / "workspaces", servers, MCP_TOKEN=TOKEN) as guest:
                await guest.offered("mcp_web_echo", "mcp_old_echo", *(f"mcp_{way}_look" for way in WAYS[:-1]))
                yield Setting(guest, web, address, elsewhere)
    finally:
        await web.kill()


@pytest.fixture(scope="module")
async def shared(nats_node: NatsServer, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Setting]:
    async with set_up(nats_node, tmp_path_factory.mktemp("web")) as ready:
        yield ready


@pytest.fixture
async def on(shared: Setting) -> Setting:
    """With a run of its own for each test."""
    return shared._replace(guest=await another_run(shared.guest))


async def test_both_kinds_of_protocols_work_with_headers_from_the_environment(on: Setting) -> None:
    specs = await on.guest.specs()
    assert specs["mcp_web_echo"].semantics is Semantics.READ_ONLY
    assert specs["mcp_old_echo"].semantics is Semantics.NON_IDEMPOTENT
    assert (await on.guest.owner.read(on.guest.boot, "mcp_web_echo", text="hi")).output == "hi"
    for server in ("web", "old"):
        assert (await on.guest.do(f"mcp_{server}_charge", amount=3)).output == "charged 3"
        big = await on.guest.do(f"mcp_{server}_big")
        assert f"[{BIG_CHARS + 10 - 30_000} characters left out]" in big.output
        headers = (await on.guest.do(f"mcp_{server}_headers")).output
        assert "Bearer [redacted]" in headers
        assert TOKEN not in headers
    assert on.web.effects().count("charge 3") == 2


async def test_a_list_that_changed_is_heard_of_over_both(on: Setting) -> None:
    assert (await on.guest.do("mcp_web_more", name="fresh")).output == "added"
    await on.guest.offered("mcp_web_fresh")
    assert (await on.guest.do("mcp_old_more", name="fresher")).output == "added"
    await on.guest.offered("mcp_old_fresher")


@pytest.mark.parametrize("server", ["web", "old"])
async def test_a_cancelled_call_is_heard_of_by_the_server(on: Setting, server: str) -> None:
    before, begun = on.web.effects().count("cancelled"), on.web.effects().count("charge 5")
    call = on.guest.call(f"mcp_{server}_charge", amount=5, hold=True)
    await on.guest.begin(call)

    async def effects() -> list[str]:
        return on.web.effects()

    await eventually(effects, "the call has begun", fits=lambda found: found.count("charge 5") > begun)
    await on.guest.owner.cancel(on.guest.boot)
    await eventually(effects, "the server knows", fits=lambda found: found.count("cancelled") > before)
    assert (await on.guest.owner.result(call)).refused == "STOPPED"


@pytest.mark.parametrize(
    "way, said",
    [
        ("endless", "more than 32 MiB"),
        ("packed", "compresses"),
        ("away", "not followed"),
        ("cut", "ended"),
    ],
)
async def test_an_address_that_misbehaves_is_an_error_at_once_and_asked_once(
    on: Setting, way: str, said: str
) -> None:
    result = await on.guest.do(f"mcp_{way}_look")
    assert not result.ok
    assert said in result.output, result.output
    assert TOKEN not in result.output
    asked = [one for one in on.address.asked if one.path == f"/{way}" and one.method == "tools/call"]
    assert len(asked) == 1
    assert asked[0].headers["authorization"] == f"Bearer {TOKEN}"
    assert on.elsewhere.asked == []


async def test_an_address_that_says_nothing_is_not_waited_for_longer_than_the_call_may_take(
    on: Setting,
) -> None:
    result = await on.guest.do("mcp_silent_look", limits={"timeout_s": 0.5})
    assert result.output.startswith("TIMEOUT: ")


async def test_a_session_that_the_server_forgot_is_an_error_that_repeats_nothing(on: Setting) -> None:
    done = on.web.effects().count("charge 8")
    await on.web.kill()
    await on.web.start()
    forgotten = await on.guest.do("mcp_old_charge", amount=8)
    assert not forgotten.ok
    assert "does not know the session any more and did not take the call" in forgotten.output
    assert on.web.effects().count("charge 8") == done
    assert (await on.guest.do("mcp_old_charge", amount=8)).output == "charged 8"
    assert on.web.effects().count("charge 8") == done + 1
    # The protocol of 2026-07-28 has no sessions that could be forgotten.
    assert (await on.guest.do("mcp_web_charge", amount=8)).output == "charged 8"


@pytest.mark.parametrize("server", ["web", "old"])
async def test_a_server_that_is_killed_in_a_call_is_an_error_at_once_and_found_again(
    on: Setting, server: str
) -> None:
    # A former test's server is forgotten first, if it has to be.
    await on.guest.do(f"mcp_{server}_empty")
    done = on.web.effects().count("charge 9")
    call = on.guest.call(f"mcp_{server}_charge", amount=9, hold=True)
    await on.guest.begin(call)

    async def begun() -> bool:
        return on.web.effects().count("charge 9") > done

    await eventually(begun, "the call has begun")
    await on.web.kill()
    lost = await on.guest.owner.result(call)
    assert lost.output.startswith("MCP_CONNECTION_LOST: ")
    away = await on.guest.do(f"mcp_{server}_echo", text="anybody?")
    assert away.output.startswith(("MCP_UNAVAILABLE: ", "MCP_CONNECTION_LOST: "))
    await on.web.start()
    results = [await on.guest.do(f"mcp_{server}_echo", text="hello") for _ in range(2)]
    assert results[-1].output == "hello"
    assert on.web.effects().count("charge 9") == done + 1
