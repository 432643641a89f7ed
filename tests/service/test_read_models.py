"""Life records become rows: the same rows in every store, however often and in whatever batches they are applied."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from libs.chassis.clock import SystemClock
from libs.contracts import events as e
from libs.contracts.checks import Verdict, Verification
from libs.contracts.envelope import Event, Record, RecordHeader, encode_record, record_class
from libs.contracts.errors import ConfigurationError
from libs.contracts.evolve import fold
from libs.contracts.run import RunState
from libs.contracts.tasks import Limits, Parent, TaskSpec
from libs.contracts.values import RunError, Usage
from libs.projection.fold import FOLD_VERSION
from libs.projection.postgres import open_postgres
from libs.projection.rows import Index, RunQuery
from libs.projection.sqlite import open_index
from tests.fakes.postgres import PostgresServer, fresh_schema, postgres

__all__ = ["postgres"]


def run_id(number: int) -> str:
    return f"run_0_{number:026d}"


def created(goal: str = "Mend the shop", tenant: str = "local") -> e.RunCreated:
    return e.RunCreated(
        tenant=tenant,
        task_id="task_0_00000000000000000000000000",
        task=TaskSpec(goal=goal, metadata={"team": "a"}),
        limits=Limits(),
        workspace="shop",
        body_hash="h",
    )


class Writer:
    """Makes the records of runs as the log would, one stream for all."""

    def __init__(self) -> None:
        self.records: list[Record] = []
        self.states: dict[str, RunState] = {}

    def append(self, run: str, *bodies: e.LogEvent, at: str = "2026-01-01T00:00:00.000Z") -> None:
        state = self.states.get(run)
        before = state.sequence if state else 0
        batch = [Event(before + 1 + n, run, at, body) for n, body in enumerate(bodies)]
        after = fold(state, batch)
        assert after is not None
        self.states[run] = after
        position = len(self.records) + 1
        header = RecordHeader(
            position,
            0,
            f"m{position}",
            record_class(bodies),
            after.epoch,
            "b",
            before + 1,
            len(batch),
            after.status,
        )
        self.records.append(Record(header, after.tenant, run, encode_record(batch)))


@pytest.fixture(params=["sqlite", "postgres"])
async def index(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Index]:
    if request.param == "sqlite":
        async with open_index(tmp_path / "index.sqlite") as opened:
            yield opened
    else:
        server: PostgresServer = request.getfixturevalue("postgres")
        async with open_postgres(server.url, fresh_schema(), SystemClock()) as opened:
            yield opened


async def apply(index: Index, records: list[Record]) -> int:
    """As the follower does, which has applied all that stands before."""
    return await index.apply(0, records[0].header.stream_sequence - 1, records)


def lived() -> Writer:
    """A run that was answered a question and completed, one that failed, one that was cancelled."""
    writer = Writer()
    first, second, third = run_id(1), run_id(2), run_id(3)
    claim = e.RunClaimed(owner="executor-1", boot="b", epoch=1, attempt=1)
    writer.append(first, created(), e.RunStartRequested(by="local"))
    writer.append(first, claim, at="2026-01-01T00:00:01.000Z")
    writer.append(
        first,
        e.RunReleased(reason="suspended", waiting_for="input"),
        e.InputRequested(question_id="q1", kind="question", question="Which one?", call_id="call_1_0"),
    )
    writer.append(second, created("Straße bauen"), at="2026-01-01T00:00:02.000Z")
    failed = e.RunFailed(error=RunError(error_code="TIMEOUT", message="too slow"), usage=Usage(requests=2))
    writer.append(second, failed, at="2026-01-01T00:00:03.000Z")
    writer.append(third, created(), at="2026-01-01T00:00:02.000Z")
    writer.append(third, e.RunCancelRequested(by="local"), e.RunCancelled(by="local", usage=Usage()))
    return writer


def answered(writer: Writer) -> None:
    first = run_id(1)
    writer.append(first, e.InputReceived(question_id="q1", kind="question", answer="a", by="local"))
    writer.append(first, e.RunClaimed(owner="executor-2", boot="c", epoch=2, attempt=2))
    verification = Verification(status=Verdict.PASSED, round=1)
    usage = Usage(requests=3, input_tokens=10, output_tokens=5, cost_usd=None)
    writer.append(
        first,
        e.RunCompleted(answer="Done.", verification=verification, usage=usage),
        at="2026-01-01T00:01:00.000Z",
    )


async def test_runs_are_counted_by_their_statuses_and_found_by_their_ids_children_aside(index: Index) -> None:
    writer = lived()
    parent = Parent(run_id=run_id(1), call_id="call_1_0", depth=1)
    writer.append(
        run_id(4), msgspec.structs.replace(created(), parent=parent), e.RunStartRequested(by="local")
    )
    writer.append(run_id(5), created(), e.RunStartRequested(by="local"))
    await apply(index, writer.records)
    assert await index.statuses("local", ("QUEUED",), [run_id(4)]) == {run_id(5): "QUEUED"}
    waiting, ended = ("WAITING_FOR_INPUT",), [run_id(2), run_id(9)]
    assert await index.statuses("local", waiting, ended) == {run_id(1): waiting[0], run_id(2): "FAILED"}
    assert await index.statuses("local", ("CANCELLED",), []) == {run_id(3): "CANCELLED"}
    assert await index.statuses("other", waiting, ended) == {}


async def test_rows_say_what_became_of_each_run(index: Index) -> None:
    writer = lived()
    await apply(index, writer.records)
    rows = {row.run_id: row for row in await index.runs(RunQuery(tenant="local"))}
    assert (rows[run_id(1)].status, rows[run_id(1)].pending_question) == ("WAITING_FOR_INPUT", "Which one?")
    assert (rows[run_id(2)].status, rows[run_id(2)].error_code, rows[run_id(2)].requests) == (
        "FAILED",
        "TIMEOUT",
        2,
    )
    assert rows[run_id(3)].status == "CANCELLED"
    answered(writer)
    await apply(index, writer.records[-3:])
    (row,) = await index.runs(RunQuery(tenant="local", statuses=("COMPLETED",)))
    assert (row.run_id, row.attempt, row.verdict, row.answer) == (run_id(1), 2, "PASSED", "Done.")
    assert (row.started_at, row.finished_at) == ("2026-01-01T00:00:01.000Z", "2026-01-01T00:01:00.000Z")
    assert (row.pending_question, row.cost_usd, row.input_tokens) == (None, None, 10)
    assert row.last_sequence == writer.states[run_id(1)].sequence


async def test_applying_records_again_changes_nothing(index: Index) -> None:
    writer = lived()
    answered(writer)
    await apply(index, writer.records)
    once = await index.runs(RunQuery(tenant="local"))
    await apply(index, writer.records)
    await apply(index, writer.records[:3])
    assert await index.runs(RunQuery(tenant="local")) == once
    assert (await index.positions())[0].stream_sequence == len(writer.records)


async def test_pages_neither_skip_nor_repeat_while_runs_are_made(index: Index) -> None:
    writer = Writer()
    for number in range(10):
        # Pairs share their millisecond, so the place of a cursor needs the id too.
        writer.append(run_id(number), created(), at=f"2026-01-01T00:00:0{number // 2}.000Z")
    await apply(index, writer.records)
    seen: list[str] = []
    query = RunQuery(tenant="local", limit=3)
    for page in range(4):
        rows = await index.runs(query)
        seen += [row.run_id for row in rows]
        query = query._replace(before=rows[-1].cursor)
        writer.append(run_id(100 + page), created(), at="2026-01-01T00:01:00.000Z")
        await apply(index, writer.records[-1:])
    assert seen == [run_id(number) for number in reversed(range(10))]


async def test_a_list_holds_only_the_tenant_s_own_runs_and_what_was_searched(index: Index) -> None:
    writer = lived()
    writer.append(run_id(9), created(tenant="other"))
    await apply(index, writer.records)
    assert [row.run_id for row in await index.runs(RunQuery(tenant="other"))] == [run_id(9)]
    assert [row.run_id for row in await index.runs(RunQuery(tenant="local", text="STRASSE"))] == [run_id(2)]
    assert await index.runs(RunQuery(tenant="local", text="100%_")) == []


async def test_a_deleted_run_leaves_the_list(index: Index) -> None:
    writer = lived()
    writer.append(run_id(2), e.RunDeleted(body_hash="h", by="local"))
    await apply(index, writer.records)
    assert {row.run_id for row in await index.runs(RunQuery(tenant="local"))} == {run_id(1), run_id(3)}


async def test_an_event_of_a_newer_version_passes_through(index: Index) -> None:
    writer = lived()
    last = writer.records[2]
    strange = last.body.replace(b'"input.requested"', b'"input.considered"')
    header = last.header._replace(stream_sequence=99, first=9, event_count=2, state="PAUSED")
    await apply(index, [*writer.records, last._replace(header=header, body=strange)])
    (row,) = await index.runs(RunQuery(tenant="local", statuses=("PAUSED",)))
    assert row.run_id == run_id(1)


async def test_what_cannot_be_stored_as_it_is_stops_nothing(index: Index) -> None:
    writer = Writer()
    writer.append(run_id(1), created("Mend \0 it \U0001f600"))
    await apply(index, writer.records)
    (row,) = await index.runs(RunQuery(tenant="local", text="\U0001f600"))
    assert row.title.startswith("Mend ")


async def test_rows_that_somebody_made_anew_send_their_followers_back(postgres: PostgresServer) -> None:
    writer, schema = lived(), fresh_schema()
    async with (
        open_postgres(postgres.url, schema, SystemClock()) as one,
        open_postgres(postgres.url, schema, SystemClock()) as other,
    ):
        await apply(one, writer.records[:-1])
        # Who is behind applies nothing again, who is in step goes on.
        assert await apply(other, writer.records[:2]) == len(writer.records) - 1
        assert await apply(other, writer.records) == len(writer.records)
        await one.clear()
        assert await other.positions() == {}
        assert await other.apply(0, len(writer.records) - 1, writer.records[-1:]) == 0
        await asyncio.gather(apply(one, writer.records), apply(other, writer.records))
        assert len(await one.runs(RunQuery(tenant="local"))) == 3


async def test_rows_of_an_earlier_version_are_made_anew_and_those_of_a_later_one_left_alone(
    postgres: PostgresServer,
) -> None:
    writer, schema = lived(), fresh_schema()
    async with open_postgres(postgres.url, schema, SystemClock()) as index:
        await apply(index, writer.records)
        await postgres.execute(f'UPDATE "{schema}".written_by SET version = {FOLD_VERSION - 1}')
        async with open_postgres(postgres.url, schema, SystemClock()) as newer:
            assert await newer.positions() == {}
        await apply(index, writer.records)
        await postgres.execute(f'UPDATE "{schema}".written_by SET version = {FOLD_VERSION + 1}')
        await index.clear()
        assert await apply(index, writer.records) == len(writer.records)
        assert await index.runs(RunQuery(tenant="local")) == []


async def test_migrations_are_applied_once_by_whoever_comes_first(postgres: PostgresServer) -> None:
    schema = fresh_schema()

    async def opened() -> None:
        async with open_postgres(postgres.url, schema, SystemClock()) as index:
            await index.finish()

    await asyncio.gather(*(opened() for _ in range(4)))
    names = await postgres.execute(f'SELECT name FROM "{schema}".migrations ORDER BY name')
    assert [row[0] for row in names] == ["0001_rows.pre.sql", "0002_indexes.post.sql"]


async def test_a_database_that_refuses_is_a_matter_of_configuration(postgres: PostgresServer) -> None:
    wrong = postgres.url.replace("/postgres", "/nowhere")
    with pytest.raises(ConfigurationError, match="DATABASE_URL"):
        async with open_postgres(wrong, fresh_schema(), SystemClock()):
            pass


async def test_a_file_goes_on_where_it_stopped_and_another_process_keeps_its_own(tmp_path: Path) -> None:
    path = tmp_path / "index.sqlite"
    writer = lived()
    async with open_index(path) as first:
        await apply(first, writer.records)
        async with open_index(path) as second:
            assert await second.positions() == {}
        assert len(list(tmp_path.glob("*.sqlite"))) == 1
    async with open_index(path) as again:
        assert len(await again.runs(RunQuery(tenant="local"))) == 3


async def test_a_record_that_cannot_be_read_is_passed_over(index: Index) -> None:
    writer = lived()
    writer.records[1] = writer.records[1]._replace(body=b"garbage")
    await apply(index, writer.records)
    rows = {row.run_id: row for row in await index.runs(RunQuery(tenant="local"))}
    assert (rows[run_id(1)].status, rows[run_id(1)].attempt) == ("WAITING_FOR_INPUT", 0)
    assert len(rows) == 3
