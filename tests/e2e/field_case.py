"""What a case from the field is, and what must hold for each of them over HTTP.

Invariant: a case is data: what the endpoint sends, and how the run must end; whatever holds for every run (gapless
events, paired calls, legal requests, one prefix that only grows) is checked for each case alike.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple, cast

import msgspec

from libs.contracts.views import EventView, RunView
from tests.e2e.stage import Script, Stage, says
from tests.fakes.wire import DONE, chunk, fin, usage

# The turn behind the tools of most cases, with usage of its own so that sums show what was counted.
LAST = says("Done.", usage={"prompt_tokens": 20, "completion_tokens": 2})


class Case(NamedTuple):
    """`turns` are the endpoint's answers; `results` are what each call gave: whether it went well, and what its output
    holds. `used` is (input, output) of the whole run. `sees` stands in the last request, `never` in none of them.
    `rules` are habits of this endpoint, `refused` how many requests it refuses for them, `requests` how many there are.
    """

    number: str
    must: str
    turns: Sequence[dict[str, object]]
    answer: str = "Done."
    error: str | None = None
    results: tuple[tuple[bool, str], ...] = ()
    used: tuple[int, int] | None = None
    sees: tuple[str, ...] = ()
    never: tuple[str, ...] = ()
    rules: tuple[str, ...] = ()
    refused: int = 0
    requests: int | None = None
    task: Mapping[str, object] = MappingProxyType({})

    @property
    def marker(self) -> str:
        return f"[case {self.number}]"

    @property
    def model(self) -> str:
        """A model of its own, so that what is learned in one case is not known in another."""
        return str(self.task.get("model", f"model-{self.number}"))


def sent(*stream: bytes, **fields: object) -> dict[str, object]:
    """An answer of exactly these bytes, each in its own write."""
    return {"base64": [base64.b64encode(piece).decode() for piece in stream], **fields}


def wired(*pieces: bytes, end: str = "eof") -> dict[str, object]:
    """A whole response, status line included."""
    return {"wire": [base64.b64encode(piece).decode() for piece in pieces], "end": end}


def text(content: str = "Done.") -> bytes:
    """A whole turn of text."""
    return chunk(content=content) + fin("stop") + usage(10, 5) + DONE


def called(*fragments: bytes, reason: str = "tool_calls") -> dict[str, object]:
    """A turn of calls that used (10, 5)."""
    return sent(b"".join(fragments) + fin(reason) + usage(10, 5) + DONE)


def tries(*answers: dict[str, object]) -> dict[str, object]:
    """A turn that is answered otherwise each time it is asked for."""
    return {"attempts": list(answers)}


def script(cases: Sequence[Case]) -> Script:
    return {case.marker: list(case.turns) for case in cases}


def habits(cases: Sequence[Case]) -> dict[str, list[str]]:
    return {case.marker: list(case.rules) for case in cases}


async def submitted(on: Stage, case: Case) -> str:
    return await on.submit(f"{case.marker} Go.", **{"model": case.model, **case.task})


async def check(on: Stage, case: Case, run_id: str) -> None:
    """The run of a case has ended as it must."""
    run = await on.ended(run_id)
    events = await on.events(run_id)
    if case.error is None:
        assert run.status == "COMPLETED", run.error
        assert run.answer == case.answer
    else:
        assert run.error is not None
        assert (run.status, run.error.error_code) == ("FAILED", case.error), run.error
    legal(events)
    results = [event.payload for event in events if event.type == "tool.completed"]
    results.sort(key=_made)  # Calls that run at the same time end in any order.
    assert [result["ok"] for result in results] == [ok for ok, _ in case.results], results
    for result, (_, part) in zip(results, case.results, strict=True):
        assert part in str(result["output"])
    counted(run, case)
    bodies = asked(on, case)
    compacted = any(event.type == "context.compacted" for event in events)
    requests_fit(case, bodies, on, compacted=compacted)


def _made(result: dict[str, object]) -> list[int]:
    """Where a call stands in its run, from its id."""
    return [int(part) for part in str(result["call_id"]).split("_")[1:]]


def counted(run: RunView, case: Case) -> None:
    if case.used is not None:
        assert (run.usage.input_tokens, run.usage.output_tokens) == case.used


def legal(events: Sequence[EventView]) -> None:
    """Gapless; each request to the model has its outcome; each call has one result, each intent comes before it."""
    assert [event.sequence for event in events] == list(range(1, len(events) + 1))
    assert [
        event.type for event in events if event.type in ("run.completed", "run.failed", "run.cancelled")
    ] == [events[-1].type]
    pending, open_calls, intended = False, list[str](), set[str]()
    for event in events:
        payload = event.payload
        match event.type:
            case "model.requested":
                assert not open_calls, open_calls
                pending = True
            case "model.completed":
                assert pending
                pending = False
                made = cast(list[dict[str, object]], payload["tool_calls"])
                open_calls = [str(call["call_id"]) for call in made]
                assert len(set(open_calls)) == len(open_calls)
            case "tool.requested":
                assert payload["call_id"] in open_calls
                intended.add(str(payload["call_id"]))
            case "tool.completed":
                open_calls.remove(str(payload["call_id"]))
            case _:
                pass


def asked(on: Stage, case: Case) -> list[bytes]:
    """The bodies of a case's requests; all runs of a module fit into what the server remembers."""
    marker = case.marker.encode()
    return [body for body in on.model.bodies if marker in body]


def requests_fit(case: Case, bodies: list[bytes], on: Stage, *, compacted: bool) -> None:
    conversation = on.model.script.find(case.marker)
    answers = [one for one in on.model.asked if one.conversation == conversation]
    ours = [one for one in answers if one.status == 400]
    assert len(ours) == case.refused, bodies[-1].decode()
    if case.requests is not None:
        assert len(bodies) == case.requests
    for part in case.sees:
        assert part in bodies[-1].decode(), part
    for body in bodies:
        assert not [part for part in case.never if part in body.decode()]
    if not case.refused and not compacted:
        prefix_only_grows(bodies)


def prefix_only_grows(bodies: Sequence[bytes]) -> None:
    """What a provider keeps in its cache: the tools, and each request's messages, which the next one begins with."""
    before = b""
    tools = {bytes(msgspec.json.decode(body, type=_Request).tools) for body in bodies}
    assert len(tools) <= 1
    for body in bodies:
        messages = bytes(msgspec.json.decode(body, type=_Request).messages).removesuffix(b"]")
        assert messages.startswith(before), (before[-500:], messages[-1_000:])
        # What is said to a model before it answers is one message, however often somebody speaks.
        before = messages.removesuffix(b'"}')


class _Request(msgspec.Struct):
    messages: msgspec.Raw
    tools: msgspec.Raw = msgspec.Raw(b"null")
