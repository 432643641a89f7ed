"""Metrics: what they say is what the logs say, whatever becomes of the gateway that says it, and only to operators."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import httpx
import msgspec
from prometheus_client.parser import text_string_to_metric_families

from libs.bus.ports import Bus, Delivery
from libs.contracts.values import Usage
from services.gateway.metrictable import METRICS
from tests.fakes.waiting import eventually
from tests.service.gateway_served import Owner, Served, created, gateway, http_client

SECRETS = {"acme": "secret-of-acme-enough"}
OPERATOR = "secret-of-operators"
SECURE = {
    "RUNTIME_API_KEYS_JSON": msgspec.json.encode(SECRETS).decode(),
    "PERDURE_OPERATOR_KEY": OPERATOR,
}
# What is counted of events, by their types, and the metric that says how many there are.
COUNTED = {
    "run.created": "agent_runs_created_total",
    "model.completed": "agent_model_calls_total",
    "tool.completed": "agent_tool_calls_total",
}

Samples = dict[str, dict[tuple[str, ...], float]]


def sent_with(secret: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {secret}"} if secret else {}


async def samples_of(served: Served, secret: str = "") -> Samples:
    """All samples by their name; labels in the order of their names."""
    async with httpx.AsyncClient(base_url=served.url, timeout=30) as client:
        answer = await client.get("/api/metrics", headers=sent_with(secret))
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    found: Samples = {}
    for family in text_string_to_metric_families(answer.text):
        for sample in family.samples:
            labels = tuple(value for _, value in sorted(sample.labels.items()))
            found.setdefault(sample.name, {})[labels] = sample.value
    return found


def of_the_log(samples: Samples) -> Samples:
    names = {name for name in samples if name.startswith("agent_") and "http" not in name}
    return {name: samples[name] for name in names - {"agent_stream_clients", "agent_dropped_events_total"}}


async def events_of(client: httpx.AsyncClient, run_ids: list[str]) -> list[dict[str, object]]:
    pages = [(await client.get(f"/api/runs/{run_id}/events?limit=1000")).json() for run_id in run_ids]
    return [event for page in pages for event in page["events"]]


async def history(bus: Bus, client: httpx.AsyncClient) -> list[str]:
    """Two runs that ended, one that waits for a person and one that nobody started."""
    runs = [await created(client) for _ in range(4)]
    for run_id in runs[:2]:
        owner = await Owner.of(bus, run_id)
        await owner.turn(1)
        await owner.turn(2)
        await owner.complete()
    waiting = await Owner.of(bus, runs[2])
    await waiting.turn(1)
    await waiting.ask()
    return runs


async def test_counts_are_those_of_the_logs_also_after_a_restart_a_loss_of_the_file_and_a_deletion(
    bus: Bus, tmp_path: Path
) -> None:
    async with gateway(bus, tmp_path) as served, http_client(served) as client:
        runs = await history(bus, client)
        events = await events_of(client, runs)
        types = Counter(str(event["type"]) for event in events)
        before = of_the_log(await samples_of(served))
        for kind, name in COUNTED.items():
            assert sum(before[name].values()) == types[kind] > 0, name
        assert before["agent_runs_total"] == {("COMPLETED", "local"): 2}
        assert before["agent_run_duration_seconds_count"] == {("COMPLETED",): 2}
        used: Counter[str] = Counter()
        for event in events:
            if event["type"] == "model.completed":
                usage = msgspec.convert(event["payload"], dict[str, object])["usage"]
                told = msgspec.convert(usage, Usage)
                used["input"] += told.input_tokens
                used["output"] += told.output_tokens
        tokens: Counter[str] = Counter()
        for (kind, *_), number in before["agent_model_tokens_total"].items():
            tokens[kind] += int(number)
        assert tokens == used
        assert before["agent_runs_open"] == {("WAITING_FOR_INPUT", "local"): 1, ("PENDING", "local"): 1}

    async with gateway(bus, tmp_path) as again:
        assert of_the_log(await samples_of(again)) == before
    async with (
        gateway(bus, tmp_path / "elsewhere", replica="gateway-2") as other,
        http_client(other) as client,
    ):
        assert of_the_log(await samples_of(other)) == before
        owner = await Owner.of(bus, runs[3])
        await owner.turn(1)
        await owner.complete()
        assert (await samples_of(other))["agent_runs_total"] == {("COMPLETED", "local"): 3}
        assert (await client.delete(f"/api/runs/{runs[0]}")).status_code == 204
        after = of_the_log(await samples_of(other))
        assert after["agent_runs_total"] == {("COMPLETED", "local"): 3}
        assert after["agent_tool_calls_total"] == {("true", "local", "echo"): 6}
    async with gateway(bus, tmp_path) as first:
        # What it did not see by itself it reads: both say the same.
        assert of_the_log(await samples_of(first)) == after


async def test_requests_processes_and_the_bus_are_measured_with_labels_from_us_alone(
    bus: Bus, served: Served, client: httpx.AsyncClient
) -> None:
    delivery = Delivery("somewhere", {}, b"?", 1, 3, "2026-01-01T00:00:00Z")
    await bus.queue.dead_letter(bus.subjects.dead("tools"), delivery, "nobody knows it")
    other = delivery._replace(stream_sequence=2)
    await bus.queue.dead_letter(bus.subjects.rejected("some-tenant"), other, "a task without a goal")
    await created(client)
    async with httpx.AsyncClient(base_url=served.url) as plain:
        for path in ("/api/nowhere", "/else", "/api/runs/run_0_x", "/api/health"):
            await plain.get(path)
        await plain.request("PROPFIND", "/api/runs")

    samples = await samples_of(served)
    requests = samples["agent_http_requests_total"]
    assert requests["POST", "/api/tasks", "201"] == 1
    assert requests["GET", "other", "404"] == 2
    assert requests["GET", "/api/runs/{run_id}", "404"] == 1
    assert requests["other", "/api/runs", "405"] == 1
    assert samples["agent_http_request_duration_seconds_count"]["GET", "other"] == 2
    assert samples["perdure_bus_up"] == {(): 1}
    assert samples["perdure_bus_dead_letters_kept"] == {("tools",): 1, ("rejected",): 1}
    mine = ("gateway-1", "gateway")
    assert samples["perdure_replica_up"][mine] == 1
    assert samples["perdure_bus_appends_total"][mine] == 1
    assert samples["perdure_bus_dead_letters_total"][mine] == 2
    assert samples["process_resident_memory_bytes"][mine] > 1_000_000
    assert samples["process_cpu_seconds_total"][mine] > 0


async def test_every_metric_is_explained_to_people_and_nothing_else_is_told(served: Served) -> None:
    told = {metric.name: metric for metrics in METRICS.values() for metric in metrics}
    async with httpx.AsyncClient(base_url=served.url) as plain:
        page = await plain.get("/api/metrics/view")
        text = (await plain.get("/api/metrics")).text
    assert page.headers["content-type"].startswith("text/html")
    assert page.headers["content-security-policy"].startswith("default-src 'none'")
    families = {family.name for family in text_string_to_metric_families(text)}
    assert families == {name.removesuffix("_total") for name in told}
    for name, metric in told.items():
        assert name in page.text
        assert f"# HELP {name} {metric.help}" in text


async def test_with_secrets_the_numbers_of_all_tenants_are_for_operators(bus: Bus, tmp_path: Path) -> None:
    async with gateway(bus, tmp_path, environment=SECURE) as served:
        async with httpx.AsyncClient(base_url=served.url) as plain:
            for path in ("/api/metrics", "/api/metrics/view"):
                for secret in ("", SECRETS["acme"], "wrong"):
                    answer = await plain.get(path, headers=sent_with(secret))
                    assert (answer.status_code, answer.json()["error_code"]) == (401, "UNAUTHORIZED")
                    assert "acme" not in answer.text
                    assert answer.headers["www-authenticate"]
            body = {"goal": "g"}
            made = await plain.post("/api/tasks", json=body, headers=sent_with(SECRETS["acme"]))
            assert made.status_code == 201
        assert (await samples_of(served, OPERATOR))["agent_runs_created_total"] == {("api", "acme"): 1}
    closed = {name: value for name, value in SECURE.items() if name != "PERDURE_OPERATOR_KEY"}
    async with gateway(bus, tmp_path, environment=closed) as served, http_client(served) as client:
        assert (await client.get("/api/metrics")).status_code == 401


async def test_a_slow_reader_of_a_stream_is_counted_with_what_it_lost(
    bus: Bus, served: Served, client: httpx.AsyncClient
) -> None:
    run_id = await created(client)
    owner = await Owner.of(bus, run_id)
    async with client.stream("GET", f"/api/runs/{run_id}/stream") as stream:
        lines = stream.aiter_lines()
        await anext(lines)

        async def lost() -> float | None:
            for _ in range(500):
                await owner.delta(1, "x" * 20_000)
            for _ in range(20):
                await anext(lines)
            samples = await samples_of(served)
            assert samples["agent_stream_clients"] == {(): 1}
            return samples["agent_dropped_events_total"]["delta",] or None

        # Little of what is sent is read: once the buffers of the sockets are full, the window goes on without this client.
        assert await eventually(lost, "a count of lost deltas") > 0
