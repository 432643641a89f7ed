"""Which calls of a turn are carried out: as many and as large as its record holds, and none that a schema refuses.

Invariant: pure; a call that is not carried out stays in its turn with a `problem`, which becomes its result, so the model
is told of every call that it made and of what became of it.
"""

import msgspec

from libs.contracts.offload import fixed_bytes
from libs.contracts.values import ModelToolCall
from libs.policy.schemas import Schemas

# Calls of a turn that are carried out, and that stand in it at all: a turn and its intents are one record, which holds
# 256 events and 512 KiB.
CALLS_MAX = 64
CALLS_SHOWN_MAX = 128
# A call goes to its host as one message, which the bus bounds at 1 MiB; there it is kept and compared.
ARGUMENTS_BYTES_MAX = 512 * 1024
# What the calls of a turn may take of its record, their large texts aside, which go to blobs. The arguments of a call
# that is carried out stand there twice. The rest of the record is for names, problems and the frame of its events.
TURN_BYTES_MAX = 288 * 1024

# What the log keeps of arguments that are refused, for people; the model is told what is wrong with them.
_SHOWN_CHARS_MAX = 2_000
_NAME_CHARS_MAX = 64

_TOO_MANY = f"at most {CALLS_MAX} calls of a turn are carried out, and this one came behind them. Make it again in a later turn if you still need it"
_NO_ROOM = "the arguments of the calls of this turn are too large together; make this call again in a turn of its own"


def accepted(calls: list[ModelToolCall], dropped: int, schemas: Schemas) -> list[ModelToolCall]:
    """The calls, each with what is against it; `dropped` more came behind them."""
    room, found = TURN_BYTES_MAX, list[ModelToolCall]()
    for index, call in enumerate(calls):
        if index < CALLS_MAX:
            checked = _checked(call, schemas)
        else:
            problem = f"{_TOO_MANY}. {dropped} more behind it were dropped" if dropped else _TOO_MANY
            checked = msgspec.structs.replace(call, problem=problem)
        size = fixed_bytes(msgspec.to_builtins(checked))
        if checked.problem is None:
            size += fixed_bytes(checked.arguments)
        if size > room:
            checked = ModelToolCall(
                call_id=call.call_id,
                name=call.name[:_NAME_CHARS_MAX],
                arguments=None,
                problem=checked.problem or _NO_ROOM,
            )
        else:
            room -= size
        found.append(checked)
    return found


def _checked(call: ModelToolCall, schemas: Schemas) -> ModelToolCall:
    """The call with what its size or its tool's schema has against it."""
    if call.arguments is None or call.problem is not None:
        return call
    encoded = msgspec.json.encode(call.arguments)
    fixed = 2 * fixed_bytes(call.arguments)
    if len(encoded) > ARGUMENTS_BYTES_MAX:
        problem = f"the arguments have {len(encoded)} bytes, {ARGUMENTS_BYTES_MAX} are allowed; split the work over several calls"
    elif fixed > TURN_BYTES_MAX:
        problem = f"the arguments have {len(encoded)} bytes in small pieces, {TURN_BYTES_MAX // 2} are allowed; split the work over several calls"
    else:
        problem = schemas.problem(call.name, call.arguments)
    if problem is None:
        return call
    shown = encoded[:_SHOWN_CHARS_MAX].decode("utf-8", "ignore")
    return msgspec.structs.replace(call, arguments=None, raw_arguments=shown, problem=problem)
