"""`PERDURE_MCP`: what a server gets, and what is wrong by its place, without a value."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from libs.contracts.errors import ConfigurationError
from services.toolhost.mcp.configuration import McpServer, parse_servers
from services.toolhost.settings import ToolhostSettings

VARIABLES = {
    "GITHUB_TOKEN": "ghs-very-secret",
    "WHERE": "search.example.com",
    "EMPTY": "",
    "NATS_PASSWORD": "p",
}


def parsed(text: object, *, secure: bool = False) -> dict[str, McpServer]:
    servers = parse_servers(
        text if isinstance(text, str) else json.dumps(text), VARIABLES, tenants_required=secure
    )
    return {server.name: server for server in servers}


def test_a_server_gets_the_variables_that_its_entry_names() -> None:
    found = parsed(
        {
            "github": {
                "command": ["npx", "-y", "server"],
                "environment": {"TOKEN": "${GITHUB_TOKEN}", "MODE": "quiet"},
                "network": True,
            },
            "search": {
                "url": "https://${WHERE}/mcp",
                "headers": {"Authorization": "Bearer ${GITHUB_TOKEN}"},
                "tenants": ["acme", "acme"],
                "tools": ["find_*"],
                "call_timeout_s": 5,
            },
        }
    )
    assert found["github"].environment == {"TOKEN": "ghs-very-secret", "MODE": "quiet"}
    assert found["github"].secrets == {b"ghs-very-secret"}
    assert found["github"].tenants == ()
    assert found["search"].headers == {"Authorization": "Bearer ghs-very-secret"}
    assert found["search"].url == "https://search.example.com/mcp"
    assert found["search"].tenants == ("acme",)
    assert found["search"].call_timeout_s == 5
    assert "ghs-very-secret" not in repr(found)


@pytest.mark.parametrize(
    "entry, place",
    [
        ({}, "s: give either"),
        ({"command": ["a"], "url": "http://x"}, "s: give either"),
        ({"command": [" "]}, "s.command:"),
        ({"command": "npx"}, "$.command"),
        ({"comand": ["a"]}, "comand"),
        ({"command": ["a\0b"]}, "command"),
        ({"command": ["a"], "headers": {"A": "b"}}, "s.headers:"),
        ({"url": "http://x", "environment": {"A": "b"}}, "s.environment:"),
        ({"url": "http://x", "network": True}, "s.network:"),
        ({"url": "ftp://x"}, "s.url:"),
        ({"url": "http://"}, "s.url:"),
        ({"url": "http://x:0"}, "s.url:"),
        ({"url": "http://x:port"}, "s.url:"),
        ({"url": "http://a b"}, "s.url:"),
        ({"url": "http://me:hidden-word@x"}, "s.url:"),
        ({"url": "http://x", "headers": {"Host": "b"}}, "s.headers:"),
        ({"url": "http://x", "headers": {"mcp-session-id": "b"}}, "s.headers:"),
        ({"url": "http://x", "headers": {"A": "b\r\nC: d"}}, "value of A"),
        ({"url": "http://x", "headers": {"A": "${MISSING}"}}, "s.headers.A: the variable MISSING is not set"),
        ({"command": ["a"], "environment": {"A": "${EMPTY}"}}, "s.environment.A: the variable EMPTY"),
        ({"command": ["a"], "environment": {"A": "${not a name}"}}, "s.environment.A:"),
        ({"command": ["a"], "environment": {"A": "${NATS_PASSWORD}"}}, "s.environment.A: NATS_PASSWORD"),
        ({"command": ["a"], "environment": {"A": "${OPENAI_API_KEY}"}}, "s.environment.A: OPENAI_API_KEY"),
        ({"command": ["a"], "environment": {"PERDURE_CALL": "x"}}, "s.environment:"),
        ({"command": ["a"], "environment": {"A=B": "x"}}, "s.environment:"),
        ({"command": ["a"], "readable": ["relative"]}, "s.readable:"),
        ({"command": ["a"], "tenants": ["A B"]}, "s.tenants:"),
        ({"command": ["a"], "tools": []}, "s.tools:"),
        ({"command": ["a"], "call_timeout_s": 0}, "$.call_timeout_s"),
        ({"command": ["a"], "start_timeout_s": 4000}, "$.start_timeout_s"),
    ],
)
def test_what_is_wrong_is_said_by_its_place(entry: object, place: str) -> None:
    with pytest.raises(ValueError, match=re.escape(place)) as caught:
        parsed({"s": entry})
    assert "hidden-word" not in str(caught.value)


@pytest.mark.parametrize("text", ["", "[]", '{"a": 1}', "{", '{"A": {"command": ["a"]}}', "[" * 100_000])
def test_what_is_no_table_of_servers_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        parsed(text)
    with pytest.raises(ValueError, match="at most 32"):
        parsed({f"s{number}": {"command": ["a"]} for number in range(33)})


def test_with_many_tenants_an_entry_says_whose_it_is() -> None:
    entry = {"command": ["a"]}
    with pytest.raises(ValueError, match=r"s\.tenants: name the tenants"):
        parsed({"s": entry}, secure=True)
    assert parsed({"s": {**entry, "tenants": ["*"]}}, secure=True)["s"].tenants == ()


def test_the_setting_is_json_or_a_file_and_a_bad_one_stops_the_service(tmp_path: Path) -> None:
    entry = {"s": {"command": ["a"], "environment": {"T": "${TOKEN}"}}}
    given = {"TOKEN": "a-secret-value"}
    inline = ToolhostSettings.load("toolhost", {**given, "PERDURE_MCP": json.dumps(entry)})
    file = tmp_path / "servers.json"
    file.write_text(json.dumps(entry))
    read = ToolhostSettings.load("toolhost", {**given, "PERDURE_MCP": str(file)})
    assert inline.mcp_servers == read.mcp_servers
    assert inline.mcp_servers[0].environment == {"T": "a-secret-value"}
    assert "a-secret-value" not in repr(inline)
    assert ToolhostSettings.load("toolhost", {}).mcp_servers == ()
    for bad in (json.dumps({"s": {"command": []}}), str(tmp_path / "none.json")):
        with pytest.raises(ConfigurationError, match="PERDURE_MCP: "):
            ToolhostSettings.load("toolhost", {"PERDURE_MCP": bad})
    keys = json.dumps({"acme": "0123456789abcdef"})
    with pytest.raises(ConfigurationError, match=r"PERDURE_MCP: s\.tenants"):
        ToolhostSettings.load(
            "toolhost", {**given, "PERDURE_MCP": json.dumps(entry), "RUNTIME_API_KEYS_JSON": keys}
        )
