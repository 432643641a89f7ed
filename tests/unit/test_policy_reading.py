"""A policy that can be read is whole, and what is wrong with one is named by its place."""

import json
from pathlib import Path

import msgspec
import pytest

from libs.contracts.errors import ConfigurationError
from libs.policy.reading import RULES_MAX, parse_policy
from libs.policy.rules import Mode, Policy, Rule, TenantPolicy, Verb
from services.executor.settings import ExecutorSettings
from services.gateway.settings import GatewaySettings
from services.toolhost.settings import ToolhostSettings


def deny(**fields: object) -> dict[str, object]:
    return {"effect": "deny", "reason": "no", **fields}


WHOLE: dict[str, object] = {
    "mode": "ask-risky",
    "rules": [
        deny(path=["secrets/", "*.pem", "!public/*.pem"]),
        {"effect": "ask", "tool": ["mcp_*", "remote_agent"], "risk": "medium", "reason": "look"},
        {"effect": "allow", "tool": "run_command", "command": ["git log *", "> build/*"], "tenant": "a*"},
        {"effect": "deny", "semantics": "NON_IDEMPOTENT", "command": "rm *", "reason": "no"},
    ],
    "tenants": {"acme": {"mode": "read-only", "rules": [deny(tool="delegate")]}},
}


def test_what_a_policy_says_is_read_as_it_stands() -> None:
    policy = parse_policy(json.dumps(WHOLE))
    assert policy.mode is Mode.ASK_RISKY
    assert policy.mode_of("acme") is Mode.READ_ONLY
    assert policy.mode_of("other") is Mode.ASK_RISKY
    assert policy.rules[0] == Rule(verb=Verb.DENY, reason="no", path=("secrets/", "*.pem", "!public/*.pem"))
    assert policy.tenants == {
        "acme": TenantPolicy(mode=Mode.READ_ONLY, rules=(Rule(verb=Verb.DENY, reason="no", tool="delegate"),))
    }
    assert parse_policy("{}") == Policy()
    assert parse_policy(msgspec.json.encode(policy)).digest == policy.digest != Policy().digest


WRONG: list[tuple[object, str]] = [
    ("", "policy"),
    ("[]", "policy"),
    ('{"mode": "yolo"}', "mode: "),
    ('{"rule": []}', "`rule`"),
    ({"rules": [deny(paths="a")]}, "rules[0]: Object contains unknown field `paths`"),
    ({"rules": [{"reason": "no"}]}, "missing required field `effect`"),
    ({"rules": [{"effect": "maybe"}]}, "rules[0].effect: "),
    ({"rules": [deny(risk="huge")]}, "rules[0].risk: "),
    ({"rules": [deny(semantics="X")]}, "rules[0].semantics: "),
    ({"rules": [{"effect": "deny"}]}, "rules[0].reason: "),
    ({"rules": [{"effect": "ask", "reason": " "}]}, "rules[0].reason: "),
    ({"rules": [deny(reason="x" * 501)]}, "rules[0].reason: "),
    ({"rules": [deny(), deny(tool="")]}, "rules[1].tool: "),
    ({"rules": [deny(tool=[])]}, "rules[0].tool: "),
    ({"rules": [deny(tool="a,b")]}, "rules[0].tool: "),
    ({"rules": [deny(tool="read_[ab")]}, "rules[0].tool: "),
    ({"rules": [deny(tenant="Acme")]}, "rules[0].tenant: "),
    ({"rules": [deny(path="/etc/*")]}, "rules[0].path: "),
    ({"rules": [deny(path="a/../b")]}, "rules[0].path: "),
    ({"rules": [deny(path=["a", "b/["])]}, "rules[0].path: 'b/['"),
    ({"rules": [deny(path="a/b**")]}, "rules[0].path: "),
    ({"rules": [deny(path="{a,b")]}, "rules[0].path: "),
    ({"rules": [deny(path="a\u202eb")]}, "rules[0].path: "),
    ({"rules": [deny(path="./")]}, "rules[0].path: "),
    ({"rules": [deny(path="!a")]}, "rules[0].path: "),
    ({"rules": [deny(path="x" * 501)]}, "rules[0].path: "),
    ({"rules": [deny(path="a", command="b")]}, "rules[0]: "),
    ({"rules": [deny(command=" ")]}, "rules[0].command: "),
    ({"rules": [deny(command="ls | rm *")]}, "rules[0].command: "),
    ({"rules": [deny(command="echo $x")]}, "rules[0].command: "),
    ({"rules": [deny(command="> a b")]}, "rules[0].command: "),
    ({"rules": [{"effect": "allow", "command": "python3 *"}]}, "rules[0].command: "),
    ({"rules": [{"effect": "allow", "command": "/usr/bin/env *"}]}, "rules[0].command: "),
    ({"rules": [deny()] * (RULES_MAX + 1)}, "rules: "),
    ({"tenants": {"Acme!": {}}}, "tenants: "),
    ({"tenants": {"acme": {"modes": "trusted"}}}, "tenants.acme: Object contains unknown field `modes`"),
    ({"tenants": {"acme": {"rules": [deny(path="/a")]}}}, "tenants.acme.rules[0].path: "),
    ({"tenants": {"acme": {"rules": [deny(tenant="acme")]}}}, "tenants.acme.rules[0].tenant: "),
]


@pytest.mark.parametrize("said,place", WRONG)
def test_what_is_wrong_is_refused_and_named(said: object, place: str) -> None:
    text = said if isinstance(said, str) else json.dumps(said)
    with pytest.raises(ValueError, match=r"policy|rules|tenants|mode") as refused:
        parse_policy(text)
    assert place in str(refused.value)


def test_all_places_are_named_at_once_but_not_hundreds() -> None:
    with pytest.raises(ValueError, match=r"rules\[0\]\.path.*rules\[1\]\.path"):
        parse_policy(json.dumps({"rules": [deny(path="/a")] * 2}))
    with pytest.raises(ValueError, match="and 90 more"):
        parse_policy(json.dumps({"rules": [deny(path="/a")] * 100}))


@pytest.mark.parametrize("kind", [ExecutorSettings, ToolhostSettings, GatewaySettings])
def test_the_setting_is_json_or_names_a_file_and_a_bad_one_stops_the_service(
    kind: type[ExecutorSettings | ToolhostSettings | GatewaySettings], tmp_path: Path
) -> None:
    text = json.dumps(WHOLE)
    (tmp_path / "policy.json").write_text(text)
    for value in (text, str(tmp_path / "policy.json")):
        assert kind.load("any", {"PERDURE_POLICY": value}).policy == parse_policy(text)
    assert kind.load("any", {}).policy == Policy()
    (tmp_path / "bad.json").write_text('{"rules": [{"effect": "deny", "reason": "no", "path": "/a"}]}')
    for value, told in {
        str(tmp_path / "bad.json"): r"PERDURE_POLICY: .*rules\[0\]\.path",
        str(tmp_path / "none.json"): "PERDURE_POLICY: .*none.json",
        str(tmp_path): "PERDURE_POLICY: ",
        "{": "PERDURE_POLICY: ",
    }.items():
        with pytest.raises(ConfigurationError, match=told):
            kind.load("any", {"PERDURE_POLICY": value})
