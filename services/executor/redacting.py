"""What an owner records of others' words, without secrets.

Invariant: what hosts, endpoints and verifiers said passes here before it is appended, whatever they did themselves; what the
model wrote stays as it is, because its calls are carried out to the byte, and so do digests and names.
"""

import msgspec

from libs.contracts import events as e
from libs.policy.redaction import Redaction

_OF_OTHERS = (
    e.ToolCompleted,
    e.ToolUncertain,
    e.ModelFailed,
    e.RunFailed,
    e.VerificationCompleted,
    e.WorkspaceAttached,
    e.WorkspaceSnapshotted,
)


def redacted(event: e.LogEvent, redaction: Redaction) -> e.LogEvent:
    """The event without secrets, if it is one that holds words of others."""
    if not isinstance(event, _OF_OTHERS):
        return event
    fields: object = msgspec.to_builtins(event)
    shown = redaction.value(fields)
    return event if shown == fields else msgspec.convert(shown, type(event))
