"""MCP servers as tools of a real tool host: real processes over their standard streams (field cases 178, 179, 182, 184)."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import AsyncIterator
from contextlib import suppress

import pytest

from deploy.dev.nats_server import NatsServer
from libs.contracts.tools import Refusal, Semantics
from tests.fakes.mcp_server import BIG_CHARS
from tests.fakes.waiting import eventually, until
from tests.service.mcp_host import Entry, Guest, another_run, hosting, official, processes_of, rogue

TOKEN = "token-that-opens-everything"
SERVERS: dict[str, Entry] = {
    "fake": official(environment={"PYTHONPATH": os.getcwd(), "TOKEN": "${MCP_TOKEN}"}),
    "old": official(handshake=True, trust_annotations=True, tools=["echo", "put", "charge", "ask"]),
    "acme": rogue(tenants=["acme"]),
    **{way: rogue(way) for way in ("prints", "floods", "batches", "garbage", "endless", "circles", "hidden")},
    "quits": rogue("quits"),
    "mute": rogue("mute", handshake=True, start_timeout_s=1),
    "ghost": {"command": ["no-such-program"]},
}


@pytest.fixture(scope="module")
async def host(nats_node: NatsServer, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Guest]:
    root = tmp_path_factory.mktemp("guests")
    sandbox = "auto" if shutil.which("bwrap") else "none"
    async with hosting(nats_node, root, SERVERS, sandbox=sandbox, MCP_TOKEN=TOKEN) as guest:
        await guest.offered("mcp_fake_echo", "mcp_old_echo", "mcp_prints_look")
        yield guest


@pytest.fixture
async def guest(host: Guest) -> Guest:
    """With a run of its own for each test."""
    return await another_run(host)


async def test_tools_have_names_and_semantics_of_their_own_and_every_page_is_read(guest: Guest) -> None:
    specs = await guest.specs()
    assert {"mcp_fake_echo", "mcp_fake_more"} <= specs.keys()
    assert [name for name in specs if name.startswith("mcp_fake_odd_name_of_a_tool_")]
    assert specs["mcp_fake_echo"].description == "Echoes."
    assert {specs[f"mcp_fake_{name}"].semantics for name in ("echo", "put", "charge")} == {
        Semantics.NON_IDEMPOTENT
    }
    trusted = [specs[f"mcp_old_{name}"].semantics for name in ("echo", "put", "charge")]
    assert trusted == [Semantics.READ_ONLY, Semantics.IDEMPOTENT, Semantics.NON_IDEMPOTENT]
    assert [name for name in specs if name.startswith("mcp_old_")] == [
        "mcp_old_echo", "mcp_old_put", "mcp_old_charge", "mcp_old_ask",
    ]  # fmt: skip
    assert specs["mcp_acme_look"].tenants == ["acme"]
    assert not any(spec.needs_workspace for name, spec in specs.items() if name.startswith("mcp_"))


async def test_current_and_earlier_protocols_are_spoken_and_health_says_which(guest: Guest) -> None:
    async def note() -> str:
        return await guest.note()

    told = (
        "fake: 14 tools, protocol 2026-07-28",
        "old: 4 tools, protocol 2025-11-25",
        "prints: 1 tools, protocol 2025-03-26",
    )
    said = await eventually(
        note, "health tells of the servers", fits=lambda text: all(one in text for one in told)
    )
    assert "acme" not in said


async def test_an_effect_is_journaled_like_any_other_and_happens_once(guest: Guest) -> None:
    before = guest.effects("fake").count("charge 7")
    call = guest.call("mcp_fake_charge", amount=7)
    await guest.begin(call)
    await guest.begin(call)
    result = await guest.owner.result(call)
    assert (result.ok, result.output) == (True, "charged 7")
    assert result.metadata["server"] == "fake"
    assert guest.effects("fake").count("charge 7") == before + 1


async def test_a_trusted_read_is_answered_on_request(guest: Guest) -> None:
    result = await guest.owner.read(guest.boot, "mcp_old_echo", text="hi")
    assert (result.ok, result.output, result.metadata["tool"]) == (True, "hi", "echo")


async def test_all_forms_of_results_arrive_and_errors_stay_errors(guest: Guest) -> None:
    forms = await guest.do("mcp_fake_forms")
    assert not forms.ok
    assert forms.metadata["error_code"] == "MCP_TOOL_ERROR"
    assert forms.metadata["parts"] == 6
    told, _, structured = forms.output.partition("{")
    assert told.splitlines() == [
        "one",
        "two",
        "[image: image/png, 70 bytes, not shown]",
        "[audio: audio/wav, 70 bytes, not shown]",
        "[resource file:///notes.txt]",
        "held",
        "[link to a resource: https://example.com/more (more)]",
    ]
    assert json.loads("{" + structured) == {"code": 7}
    assert (await guest.do("mcp_fake_empty")).output == "(the tool answered without content)"
    assert (await guest.do("mcp_fake_listed")).output.startswith("1\n2\n{")
    big = await guest.do("mcp_fake_big")
    assert big.ok
    assert big.output.startswith("begin xxx")
    assert big.output.endswith("xxx end")
    assert f"[{BIG_CHARS + 10 - 30_000} characters left out]" in big.output
    refused = await guest.do("mcp_fake_refuse")
    assert (refused.ok, refused.output) == (False, "MCP_ERROR: no such account (-32602)")


async def test_arguments_are_held_against_the_schema_before_the_server_is_asked(guest: Guest) -> None:
    result = await guest.do("mcp_fake_charge", amount="much")
    assert result.output == "INVALID_ARGUMENTS: amount: 'much' is not of type 'integer'"


async def test_a_server_that_dies_in_a_call_is_an_error_at_once_and_is_back_at_the_next_call(
    guest: Guest,
) -> None:
    result = await guest.do("mcp_fake_die")
    assert not result.ok
    assert result.output.startswith("MCP_CONNECTION_LOST: ")
    assert "exit code 3; out of luck" in result.output
    assert "not known" in result.output
    assert guest.effects("fake").count("die") == 1
    assert (await guest.do("mcp_fake_echo", text="back")).output == "back"
    assert guest.effects("fake").count("die") == 1


async def test_a_server_that_died_between_calls_is_back_without_an_error(guest: Guest) -> None:
    for pid in processes_of("prints"):
        # One may have gone with another.
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    await until(lambda: not processes_of("prints"), "it is gone")
    results = [await guest.do("mcp_prints_look") for _ in range(2)]
    assert results[-1].output == "looked"


@pytest.mark.parametrize("server", ["fake", "old"])
async def test_a_cancelled_call_is_told_to_the_server(guest: Guest, server: str) -> None:
    done = guest.effects(server).count("cancelled")
    call = guest.call(f"mcp_{server}_charge", amount=1, hold=True)
    begun = guest.effects(server).count("charge 1")
    await guest.begin(call)
    await until(lambda: guest.effects(server).count("charge 1") > begun, "the call has begun")
    assert (await guest.owner.cancel(guest.boot)).ended == 1
    assert (await guest.owner.result(call)).refused == Refusal.STOPPED
    await until(lambda: guest.effects(server).count("cancelled") > done, "the server has heard of it")


async def test_a_call_that_takes_too_long_is_ended_and_told_to_the_server(guest: Guest) -> None:
    done = guest.effects("fake").count("cancelled")
    result = await guest.do("mcp_fake_charge", amount=2, hold=True, limits={"timeout_s": 0.5})
    assert result.output.startswith("TIMEOUT: the server did not answer within")
    await until(lambda: guest.effects("fake").count("cancelled") > done, "the server has heard of it")


async def test_texts_between_messages_are_skipped_and_arrays_of_messages_are_read(guest: Guest) -> None:
    assert (await guest.do("mcp_prints_look")).output == "looked"
    assert (await guest.do("mcp_batches_look")).output == "looked"


async def test_a_flood_of_complaints_holds_up_nothing(guest: Guest) -> None:
    await guest.offered("mcp_floods_look")
    assert (await guest.do("mcp_floods_look")).output == "looked"


async def test_an_answer_that_is_none_is_an_error_at_once(guest: Guest) -> None:
    result = await guest.do("mcp_garbage_look")
    assert result.output == "MCP_ERROR: its answer is not one that the protocol allows (-32700)"
    endless = await guest.do("mcp_endless_look")
    assert endless.output.startswith("MCP_CONNECTION_LOST: ")
    assert "more than 32 MiB" in endless.output


async def test_lists_without_end_and_hidden_texts_are_cut(guest: Guest) -> None:
    specs = await guest.offered("mcp_circles_t0", "mcp_hidden_look")
    assert len([name for name in specs if name.startswith("mcp_circles_")]) == 50
    hidden = specs["mcp_hidden_look"]
    assert hidden.description == "Looks."
    assert hidden.parameters["properties"] == {"a": {"description": "An argument."}}


async def test_a_changed_list_reaches_the_catalog(guest: Guest) -> None:
    assert (await guest.do("mcp_fake_more", name="brand_new")).output == "added"
    await guest.offered("mcp_fake_brand_new")
    assert (await guest.do("mcp_fake_brand_new")).output == "brand_new was called"


@pytest.mark.parametrize("server", ["fake", "old"])
async def test_what_a_server_asks_of_us_is_not_supported(guest: Guest, server: str) -> None:
    said = (await guest.do(f"mcp_{server}_ask")).output
    assert "not supported" in said
    assert "granted" not in said


async def test_a_tool_of_another_tenant_is_unknown(guest: Guest) -> None:
    assert (await guest.do("mcp_acme_look")).refused == Refusal.UNKNOWN_TOOL
    theirs = guest.call("mcp_acme_look", limits={"tenant": "acme"})
    # Theirs it would be; this run is not.
    await guest.begin(theirs)
    assert (await guest.do("mcp_prints_look")).ok


async def test_a_server_has_its_own_variables_and_shows_none_of_its_secrets(guest: Guest) -> None:
    result = await guest.do("mcp_fake_environment")
    shown = json.loads(result.output.partition("\n{")[0])
    assert shown["TOKEN"] == "[redacted]"
    assert not {"MCP_TOKEN", "PERDURE_MCP", "WORKSPACE_DIR", "REPLICA_ID"} & shown.keys()
    catalog = await guest.bus.bucket("catalog").entries()
    assert not any(TOKEN.encode() in entry.value for entry in catalog)
    assert TOKEN not in await guest.note()


async def test_servers_that_do_not_come_up_cost_nobody_else_anything(guest: Guest) -> None:
    specs = await guest.specs()
    assert not [name for name in specs if name.startswith(("mcp_quits_", "mcp_mute_", "mcp_ghost_"))]
    assert "mute: not connected" in await guest.note()
