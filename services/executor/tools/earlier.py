"""Calls that read an earlier result of their own run: answered from its log.

Invariant: nothing is done and nobody else is asked, so a call that a crash cut off is just answered again.
"""

from libs.bus.checkpoints import Index, place_before
from libs.bus.ports import Log, LogKey
from libs.contracts.envelope import decode_events
from libs.contracts.events import ToolCompleted
from libs.contracts.run import CallState, RunState
from services.executor.decision.calls import completed
from services.executor.egress.budget import result_chars_max
from services.executor.egress.results import named, page


async def read_earlier(log: Log, state: RunState, call: CallState, index: Index) -> ToolCompleted:
    """The page that a call asks for, or what is wrong with what it asks. `index` is that of the run's log."""
    found = named(state, call.arguments)
    if found is None:
        wrong = f"this run has no result {call.arguments.get('path')!r}"
        return completed(call.call_id, ok=False, output=wrong)
    text = await _whole(log, state, found.sequence, index) if found.light else found.output
    ok, output = page(text, call.arguments, result_chars_max(state))
    return completed(call.call_id, ok=ok, output=output)


async def _whole(log: Log, state: RunState, sequence: int, index: Index) -> str:
    """The output in the event with this sequence."""
    key, position = LogKey(state.tenant, state.run_id), place_before(index, sequence)
    while records := await log.page(key, position):
        for record in records:
            header = record.header
            if header.first <= sequence <= header.last:
                body = decode_events(record)[sequence - header.first].body
                assert isinstance(body, ToolCompleted), f"event {sequence} of {state.run_id} is {body.type}"
                return body.output
            position = header.stream_sequence
    raise AssertionError(f"{state.run_id} has no event {sequence}")
