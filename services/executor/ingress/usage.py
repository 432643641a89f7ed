"""Usage as providers report it → the one form in which we sum it.

Invariant: an odd or empty frame counts as none; a number that is missing is 0, never a guess.
"""

from typing import cast

import msgspec

from libs.contracts.values import Usage


class Frame(msgspec.Struct, frozen=True, kw_only=True):
    """One usage frame of a stream: cumulative counts."""

    input_tokens: int
    output_tokens: int
    cached_tokens: int
    reasoning_tokens: int

    @property
    def total(self) -> int:
        return self.input_tokens + self.output_tokens

    def usage(self) -> Usage:
        """The usage of one request; its cost is added by who knows the prices."""
        return Usage(
            requests=1,
            input_tokens=self.input_tokens,
            cached_tokens=min(self.cached_tokens, self.input_tokens),
            output_tokens=self.output_tokens,
            reasoning_tokens=min(self.reasoning_tokens, self.output_tokens),
        )


def read_frame(usage: object) -> Frame | None:
    """The frame in a chunk's `usage`; `None` when there is nothing in it."""
    if not isinstance(usage, dict) or not usage:
        return None
    fields = cast(dict[str, object], usage)
    prompt, completion = (
        _fields(fields, "prompt_tokens_details"),
        _fields(fields, "completion_tokens_details"),
    )
    frame = Frame(
        input_tokens=_count(fields, "prompt_tokens", "input_tokens"),
        output_tokens=_count(fields, "completion_tokens", "output_tokens"),
        cached_tokens=_count(prompt, "cached_tokens")
        or _count(fields, "prompt_cache_hit_tokens", "cached_tokens"),
        reasoning_tokens=_count(completion, "reasoning_tokens"),
    )
    return frame if frame.total > 0 else None


def _fields(fields: dict[str, object], name: str) -> dict[str, object]:
    found = fields.get(name)
    return cast(dict[str, object], found) if isinstance(found, dict) else {}


def _count(fields: dict[str, object], *names: str) -> int:
    for name in names:
        value = fields.get(name)
        if isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < 1e15:
            return int(value)
    return 0
