"""Buying a summary: the model calls of one compaction, until there is a summary or a reason to do without.

Invariant: it always ends in a compaction and never fails a run; whatever was asked for and did not help is counted in
the compaction's usage. Keyed by nothing: a summary that a crash loses is bought again, and has no other effect.
"""

from collections.abc import Awaitable, Callable

import msgspec

from libs.chassis.logs import get_logger
from libs.contracts.events import ContextCompacted
from libs.contracts.run import RunState
from libs.contracts.values import Usage
from services.executor.egress.context import GAIN_SHARE_MIN
from services.executor.egress.request import ContextOverflow, ModelFailure
from services.executor.egress.summary import (
    EMPTY_MAX,
    SHRINK,
    SHRINKS_MAX,
    asked,
    installed,
    material,
    material_tokens_max,
)
from services.executor.ingress.finish import Fail, judge
from services.executor.ingress.tokens import MESSAGE_TOKENS, tokens_in
from services.executor.ingress.turn import ModelTurn

# Asks the model for a turn without tools: the messages, their estimate.
Ask = Callable[[list[bytes], int], Awaitable[ModelTurn]]
# The tokens of a request after a compaction, as the run's model counts.
Measure = Callable[[ContextCompacted], int]

_log = get_logger("summary")


async def summarised(
    state: RunState, mechanical: ContextCompacted, ask: Ask, measure: Measure
) -> ContextCompacted:
    """`mechanical` with a summary of what leaves by it, or as it is. Cancellable at any point."""
    spent, tokens_max, shrinks, empty = Usage(), material_tokens_max(state), 0, 0
    while shrinks <= SHRINKS_MAX and empty < EMPTY_MAX:
        messages = asked(material(state, mechanical.dropped, tokens_max))
        estimate = sum(tokens_in(message) + MESSAGE_TOKENS for message in messages)
        try:
            turn = await ask(messages, estimate)
        except ContextOverflow as overflow:
            spent = spent.plus(overflow.usage)
            # What was asked may have been shorter than was allowed.
            tokens_max, shrinks = int(min(tokens_max, estimate) * SHRINK), shrinks + 1
            continue
        except ModelFailure as failure:
            spent = spent.plus(failure.usage)
            return _without(state, mechanical, spent, f"{failure.error_code}: {failure.message}")
        spent = spent.plus(turn.usage)
        if not turn.content.strip() or isinstance(judge(turn, tools_offered=False, nudges=0), Fail):
            empty += 1
            continue
        event = installed(mechanical, turn.content, state)
        tokens = measure(event)
        if tokens > (1 - GAIN_SHARE_MIN) * mechanical.tokens_before:
            return _without(state, mechanical, spent, f"{tokens} of {mechanical.tokens_before} tokens stay")
        return msgspec.structs.replace(event, tokens_after=tokens, usage=spent)
    reason = "the model gave none" if empty else "whatever was asked for it was too long"
    return _without(state, mechanical, spent, reason)


def _without(state: RunState, mechanical: ContextCompacted, spent: Usage, reason: str) -> ContextCompacted:
    _log.warning("context.no_summary", run_id=state.run_id, reason=reason)
    return msgspec.structs.replace(mechanical, usage=spent)
