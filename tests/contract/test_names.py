"""Ids and subjects: made and read back, safe as tokens, and never two for one cause."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from libs.contracts import ids, streams
from libs.contracts.clock import parse_rfc3339, rfc3339
from libs.contracts.subjects import PRIORITIES, LogSubject, Subjects, journal_key

TOKENS = st.from_regex(r"[a-z0-9_-]{1,64}", fullmatch=True)
SHARDS = st.integers(1, 999)
CAUSES = st.lists(st.text(st.characters(exclude_categories=("Cs",)), max_size=20), min_size=1, max_size=3)


class FixedClock:
    """A clock that stands still and whose chance is given."""

    def __init__(self, at: datetime, chance: int = 0) -> None:
        self._at, self._chance = at, chance

    def now(self) -> datetime:
        return self._at

    def monotonic(self) -> float:
        return 0.0

    async def sleep(self, seconds: float) -> None:
        raise AssertionError(f"nothing here waits, least of all {seconds} s")

    def entropy(self, size: int) -> bytes:
        return bytes([self._chance]) * size


@given(SHARDS, CAUSES)
def test_a_cause_always_gives_the_same_run_in_an_open_shard(shards: int, cause: list[str]) -> None:
    run_id = ids.derived_run_id(shards, *cause)
    assert run_id == ids.derived_run_id(shards, *cause)
    assert ids.is_id("run", run_id)
    assert 0 <= ids.shard_of(run_id) < shards


@given(CAUSES, CAUSES)
def test_two_causes_give_two_runs(one: list[str], other: list[str]) -> None:
    if "\0".join(one) != "\0".join(other):
        assert ids.derived_run_id(1, *one) != ids.derived_run_id(1, *other)


@given(SHARDS, CAUSES, st.text(max_size=10))
def test_a_child_lives_in_the_shard_of_its_parent(shards: int, cause: list[str], call_id: str) -> None:
    parent = ids.derived_run_id(shards, *cause)
    child = ids.child_run_id(parent, call_id)
    assert child == ids.child_run_id(parent, call_id)
    assert ids.shard_of(child) == ids.shard_of(parent)
    assert child != parent


@given(SHARDS, CAUSES)
def test_a_run_and_its_task_find_each_other(shards: int, cause: list[str]) -> None:
    run_id = ids.derived_run_id(shards, *cause)
    task_id = ids.task_id_of(run_id)
    assert ids.is_id("task", task_id)
    assert not ids.is_id("run", task_id)
    assert ids.first_run_of(task_id) == run_id


def test_random_ids_sort_by_the_time_they_were_made() -> None:
    first = datetime(2026, 11, 29, tzinfo=UTC)
    times = [first + timedelta(milliseconds=37 * index) for index in range(50)]
    made = [ids.random_run_id(FixedClock(at, 255 - index), 3) for index, at in enumerate(times)]
    assert made == sorted(made)
    assert len(set(made)) == 50


@pytest.mark.parametrize(
    "forged",
    [
        "",
        "run_0_",
        "run_0_" + "0" * 25,
        "run_0_" + "0" * 27,
        "run_0_" + "u" * 26,
        "run_0_" + "0" * 26 + "\n",
        "run_1000_" + "0" * 26,
        "run_-1_" + "0" * 26,
        "run_0_" + "0" * 25 + ".",
        "run_0_" + "0" * 25 + "*",
        "run_\u0663_" + "0" * 26,
        "run_01_" + "0" * 26,
        "job_0_" + "0" * 26,
        " run_0_" + "0" * 26,
    ],
)
def test_a_forged_id_is_refused(forged: str) -> None:
    assert not ids.is_id("run", forged)
    with pytest.raises(ValueError, match="not an id"):
        ids.shard_of(forged)


@given(TOKENS, TOKENS, SHARDS, CAUSES, st.sampled_from(["life", "work"]))
def test_the_subject_of_a_record_is_read_back_as_written(
    prefix: str, tenant: str, shards: int, cause: list[str], record_class: str
) -> None:
    subjects, run_id = Subjects(prefix), ids.derived_run_id(shards, *cause)
    subject = subjects.log(tenant, run_id, "life" if record_class == "life" else "work")
    shard = ids.shard_of(run_id)
    assert subjects.parse_log(subject) == LogSubject(shard, tenant, run_id, record_class)  # pyright: ignore[reportArgumentType] drawn from the two
    assert matches(subjects.log_filter(tenant, run_id), subject)
    assert matches(subjects.log_of_shard(shard), subject)
    assert matches(subjects.life_of_shard(shard), subject) == (record_class == "life")
    assert subjects.tenant_of_task(subjects.tasks(tenant)) == tenant


@pytest.mark.parametrize(
    "subject",
    [
        "",
        "perdure",
        "perdure.log.0.t.r",
        "perdure.log.x.t.r.life",
        "perdure.log.0.t.r.other",
        "p.log.0.t.r.life",
    ],
)
def test_other_subjects_are_no_record(subject: str) -> None:
    with pytest.raises(ValueError, match="not the subject of a record"):
        Subjects().parse_log(subject)


@pytest.mark.parametrize("prefix", ["", "a.b", "A", "a b", "*", ">", "a" * 65, "é", "a\n"])
def test_a_prefix_that_is_no_token_is_refused(prefix: str) -> None:
    with pytest.raises(ValueError, match="PERDURE_PREFIX"):
        Subjects(prefix)


@given(st.text(min_size=1, max_size=30))
def test_whatever_a_model_calls_its_call_is_one_token_of_a_key(call_id: str) -> None:
    run_id = ids.derived_run_id(1, "x")
    assert len(journal_key(run_id, call_id, 1).split(".")) == 3
    assert journal_key(run_id, call_id, 1).isascii()


def test_no_two_streams_take_the_same_subject_and_no_two_things_share_a_name() -> None:
    subjects = Subjects("p")
    declared = streams.streams(subjects, shards=3)
    taken = [subject for stream in declared for subject in stream.subjects]
    for one in taken:
        assert [other for other in taken if matches(other, one.replace("*", "x").replace(">", "x.y"))] == [
            one
        ]
    names = [spec.name for spec in (*declared, *streams.buckets(subjects), *streams.stores(subjects))]
    assert len(set(names)) == len(names)


def test_every_consumer_reads_a_declared_stream_and_no_two_share_a_message() -> None:
    subjects = Subjects("p")
    declared = {stream.name: stream for stream in streams.streams(subjects)}
    consumers = [
        *streams.tickets(subjects),
        streams.tasks_consumer(subjects),
        streams.shared_tool_consumer(subjects, "verify"),
        streams.host_consumer(subjects, "b1"),
        streams.host_consumer(subjects, "b2"),
    ]
    assert len({consumer.name for consumer in consumers}) == len(consumers)
    for consumer in consumers:
        example = consumer.filter_subject.replace("*", "x")
        assert any(matches(subject, example) for subject in declared[consumer.stream].subjects)
        readers = [other for other in consumers if matches(other.filter_subject, example)]
        assert readers == [consumer]
    assert [consumer.filter_subject for consumer in streams.tickets(subjects)] == [
        subjects.work(priority) for priority in PRIORITIES
    ]


@given(st.datetimes(timezones=st.just(UTC)))
def test_a_time_is_read_back_to_the_millisecond(moment: datetime) -> None:
    text = rfc3339(moment)
    assert text.endswith("Z")
    assert parse_rfc3339(text) == moment.replace(microsecond=moment.microsecond // 1000 * 1000)


def test_a_time_without_a_zone_is_refused() -> None:
    with pytest.raises(ValueError, match="zone"):
        parse_rfc3339("2026-11-29T12:00:00")


def matches(pattern: str, subject: str) -> bool:
    """Whether the server would route `subject` to `pattern`."""
    wanted, given_tokens = pattern.split("."), subject.split(".")
    if wanted[-1] == ">":
        wanted = wanted[:-1]
        if len(given_tokens) <= len(wanted):
            return False
        given_tokens = given_tokens[: len(wanted)]
    return len(wanted) == len(given_tokens) and all(
        one in ("*", other) for one, other in zip(wanted, given_tokens, strict=True)
    )
