"""What a request of a run may hold, in tokens by our estimate.

Invariant: pure; a bound follows from the run's limits and its log, and never from the request that is measured by it.
"""

from libs.contracts.run import RunState

# Room for what the model writes: a fixed share would be too small for small windows and wasteful in large ones.
_OUTPUT_TOKENS = 8_000
_OUTPUT_SHARE_MAX = 0.25
# One turn with its results takes at most this share, so that the turn before it is still seen beside it.
_TURN_SHARE = 0.5
# The next request stays this far under one that was refused.
_REFUSED_SHARE = 0.9


def output_room(context_tokens: int) -> int:
    """What is kept free for the model's answer, however much it may write: there has to be room for what it reads."""
    return min(_OUTPUT_TOKENS, int(context_tokens * _OUTPUT_SHARE_MAX))


def input_tokens_max(state: RunState) -> int:
    """What messages and tools may take. An estimate that the run's model has shown to be low by half counts half."""
    limits = state.limits
    room = int((limits.context_tokens - output_room(limits.context_tokens)) / state.token_ratio)
    if state.refused_tokens is not None:
        room = min(room, int(state.refused_tokens * _REFUSED_SHARE))
    return room


def result_chars_max(state: RunState) -> int:
    """How much of an earlier result is shown at once: so much that it is not clipped in its turn, whatever it holds."""
    return max(1, min(state.limits.max_tool_output_chars, turn_tokens_max(state) // 2))


def turn_tokens_max(state: RunState) -> int:
    """What one turn may take. It follows from the limits until a compaction says less, so that the messages of a turn
    stay the same bytes for a provider's cache."""
    limits = state.limits
    share = int((limits.context_tokens - output_room(limits.context_tokens)) * _TURN_SHARE)
    return share if state.turn_tokens_max is None else min(share, state.turn_tokens_max)
