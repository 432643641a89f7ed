"""What a model says while it says it: on the run's live subject only, never stored.

Invariant: whatever is lost here stands whole in `model.completed`.
"""

import msgspec


class ModelDelta(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="model.delta"):
    """Text of a model as it streams: on the live subject only. A higher `attempt` replaces what a lower one showed."""

    run_id: str
    iteration: int
    attempt: int
    content: str = ""
    reasoning: str = ""
