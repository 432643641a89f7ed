"""The policy over HTTP: explained command by command, to each tenant its own, and shown in health without tenants."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import msgspec

from libs.bus.liveness import Registration, register
from libs.bus.ports import Bus
from libs.chassis.clock import SystemClock
from libs.contracts.policyviews import DecisionView, RuleView
from libs.contracts.subjects import catalog_key
from libs.contracts.tools import HostCatalog, Semantics, ToolSpec
from libs.policy.reading import parse_policy
from services.toolhost.tools.run_command import SPEC as RUN_COMMAND
from tests.service.gateway_served import gateway, http_client

ALPHA, BETA, OPERATOR = (f"{name}-secret-0123456789" for name in ("alpha", "beta", "operator"))
POLICY = json.dumps(
    {
        "mode": "ask-risky",
        "rules": [
            {"effect": "allow", "tool": "run_command", "command": ["git log *", "head *"]},
            {"effect": "deny", "command": "rm *", "reason": "nothing is removed"},
            {"effect": "deny", "tool": "mcp_*", "tenant": "beta", "reason": "beta has no forge"},
        ],
        "tenants": {"beta": {"mode": "read-only"}},
    }
)
LOCAL = {"PERDURE_POLICY": POLICY}
SECURE = {
    **LOCAL,
    "RUNTIME_API_KEYS_JSON": json.dumps({"alpha": ALPHA, "beta": BETA}),
    "PERDURE_OPERATOR_KEY": OPERATOR,
}
MCP = ToolSpec(name="mcp_forge_merge", description="", parameters={}, semantics=Semantics.NON_IDEMPOTENT)


@asynccontextmanager
async def asking(
    bus: Bus, folder: Path, environment: dict[str, str], digest: str = ""
) -> AsyncGenerator[httpx.AsyncClient]:
    """A client of a gateway beside a tool host that offers something and goes by a policy."""
    known = digest or parse_policy(POLICY).digest
    registration = Registration(
        service="toolhost",
        replica="toolhost-1",
        slots=1,
        model_configured=False,
        ttl_s=3.0,
        info={"policy": known},
    )
    async with register(bus, SystemClock(), registration, on_death=lambda: None) as liveness:
        catalog = HostCatalog(boot=liveness.boot, replica="toolhost-1", host="h", tools=[RUN_COMMAND, MCP])
        await bus.bucket("catalog").put(catalog_key(catalog.boot), msgspec.json.encode(catalog), ttl_s=60)
        async with gateway(bus, folder, environment=environment) as served, http_client(served) as client:
            yield client


async def asked(
    client: httpx.AsyncClient, body: dict[str, object], secret: str | None = None, status: int = 200
) -> dict[str, object]:
    headers = {"Authorization": f"Bearer {secret}"} if secret else {}
    response = await client.post("/api/policy/explain", json=body, headers=headers)
    assert response.status_code == status, response.text
    return response.json()


def line(command: str, **more: object) -> dict[str, object]:
    return {"tool": "run_command", "arguments": {"command": command}, **more}


async def test_a_line_is_explained_command_by_command(bus: Bus, tmp_path: Path) -> None:
    async with asking(bus, tmp_path, LOCAL) as client:
        found = await asked(client, line("git log -3 | head; rm -r x && make"))
        allowed = await asked(client, line("git log -3 | head"))
        unclear = await asked(client, line("git log '"))
        wrong = await asked(client, {"tool": "run_command", "arguments": {"cmd": "ls"}})
    assert (found["effect"], found["reason"], found["mode"]) == ("deny", "nothing is removed", "ask-risky")
    assert (found["tool"], found["tenant"], found["risk"]) == ("run_command", "local", "high")
    assert found["segments"] == [
        {
            "command": "git log -3",
            "effect": "allow",
            "reason": "rules[0] of the policy allows it",
            "rules": ["rules[0]"],
        },
        {
            "command": "head",
            "effect": "allow",
            "reason": "rules[0] of the policy allows it",
            "rules": ["rules[0]"],
        },
        {"command": "rm -r x", "effect": "deny", "reason": "nothing is removed", "rules": ["rules[1]"]},
        {"command": "make", "effect": "ask", "reason": "no rule allows `make`", "rules": []},
    ]
    rules = DecisionView.model_validate(found).rules
    assert [rule.place for rule in rules] == ["rules[1]", "rules[0]"]
    assert rules[0] == RuleView(
        place="rules[1]", effect="deny", reason="nothing is removed", command=["rm *"]
    )
    assert (allowed["effect"], allowed["arguments_problem"]) == ("allow", None)
    assert (unclear["effect"], unclear["segments"]) == ("ask", [])
    assert "command" in str(wrong["arguments_problem"])


async def test_a_tenant_asks_for_itself_and_an_operator_for_anyone(bus: Bus, tmp_path: Path) -> None:
    merge: dict[str, object] = {"tool": MCP.name}
    async with asking(bus, tmp_path, SECURE) as client:
        assert (await asked(client, merge, ALPHA))["effect"] == "ask"
        assert (await asked(client, {**merge, "tenant": "alpha"}, ALPHA))["tenant"] == "alpha"
        beta = await asked(client, merge, BETA)
        assert (beta["effect"], beta["mode"], beta["reason"]) == ("deny", "read-only", "beta has no forge")
        assert await asked(client, {**merge, "tenant": "beta"}, OPERATOR) == beta
        other = await asked(client, {**merge, "tenant": "beta"}, ALPHA, 404)
        assert other["error_code"] == "NOT_FOUND"
        nobody = await asked(client, merge, OPERATOR, 422)
        assert nobody["details"] == [
            {"field": "tenant", "message": "is missing: name the tenant whose call it would be"}
        ]
        assert (await asked(client, merge, None, 401))["error_code"] == "UNAUTHORIZED"
        assert (await asked(client, merge, "x" * 20, 401))["error_code"] == "UNAUTHORIZED"


WRONG: list[tuple[dict[str, object], str]] = [
    ({"tool": "unheard_of"}, "tool"),
    ({"arguments": {}}, "tool"),
    (line("ls", tenant="No One"), "tenant"),
    (line("ls", dry=True), "dry"),
    ({"tool": "run_command", "arguments": []}, "arguments"),
]


async def test_what_cannot_be_asked_has_the_envelope(bus: Bus, tmp_path: Path) -> None:
    async with asking(bus, tmp_path, LOCAL) as client:
        for body, field in WRONG:
            refused = await asked(client, body, None, 422)
            assert set(refused) == {"error_code", "message", "request_id", "details"}
            assert f"'field': '{field}'" in str(refused["details"])
        assert "run_command" in str((await asked(client, {"tool": "unheard_of"}, None, 422))["message"])
        assert (await asked(client, {"tool": "delegate"}))["effect"] == "allow"
        assert (await client.get("/api/policy/explain")).status_code == 405


async def test_health_shows_the_policy_without_tenants_and_who_goes_by_another_one(
    bus: Bus, tmp_path: Path
) -> None:
    async with asking(bus, tmp_path, SECURE, digest="another") as client:
        health = (await client.get("/api/health")).json()
    shown = health["policy_in_force"]
    assert (shown["mode"], shown["differing"], shown["tenant_rules"]) == ("ask-risky", ["toolhost-1"], 1)
    assert [rule["place"] for rule in shown["rules"]] == ["rules[0]", "rules[1]"]
    assert "beta" not in json.dumps(shown)
    assert shown["digest"] in health["policy"]
    assert {tool["name"]: tool["risk"] for tool in health["tools"]} == {
        MCP.name: "high",
        "run_command": "high",
    }
