"""Whether a call that the policy asks about was approved: from the run's log, not from the caller.

Invariant: an approval counts only for the tool, call and arguments that its hash names, and only as the log tells it.
"""

from libs.bus.ports import Log, LogKey
from libs.contracts.envelope import decode_events
from libs.contracts.events import InputReceived
from libs.contracts.tools import ToolCall
from libs.policy.approval import approval_hash


async def is_approved(log: Log, call: ToolCall) -> bool:
    """Whether the event that the call names is an approval of exactly this call."""
    if call.approval_sequence is None:
        return False
    wanted = approval_hash(call.name, call.arguments, call.call_id)
    if call.approval_hash != wanted:
        return False
    for record in await log.read(LogKey(call.tenant, call.run_id)):
        if not record.header.first <= call.approval_sequence <= record.header.last:
            continue
        for event in decode_events(record):
            if event.sequence == call.approval_sequence:
                body = event.body
                return (
                    isinstance(body, InputReceived)
                    and body.decision == "approve"
                    and body.approval_hash == wanted
                )
    return False
