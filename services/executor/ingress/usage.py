"""Usage as providers report it → the one form in which we sum it.

Invariant: an odd or empty frame counts as none; a number that is missing is 0, never a guess.
"""

from typing import Self, cast

import msgspec

from libs.contracts.values import Usage

# What was written into the provider's cache, by the names of several providers, in the details or beside them.
_CACHE_WRITES = ("cache_write_tokens", "cache_creation_input_tokens", "cache_creation_tokens")


class Frame(msgspec.Struct, frozen=True, kw_only=True):
    """One usage frame of a stream: cumulative counts."""

    input_tokens: int
    output_tokens: int
    cached_tokens: int
    cache_write_tokens: int
    reasoning_tokens: int

    def joined(self, other: Self) -> "Frame":
        """Both frames of one turn: counts only grow, and some send the input's with the first frame alone."""
        return Frame(
            input_tokens=max(self.input_tokens, other.input_tokens),
            output_tokens=max(self.output_tokens, other.output_tokens),
            cached_tokens=max(self.cached_tokens, other.cached_tokens),
            cache_write_tokens=max(self.cache_write_tokens, other.cache_write_tokens),
            reasoning_tokens=max(self.reasoning_tokens, other.reasoning_tokens),
        )

    def usage(self) -> Usage:
        """The usage of one request; its cost is added by who knows the prices."""
        cached = min(self.cached_tokens, self.input_tokens)
        return Usage(
            requests=1,
            input_tokens=self.input_tokens,
            cached_tokens=cached,
            cache_write_tokens=min(self.cache_write_tokens, self.input_tokens - cached),
            output_tokens=self.output_tokens,
            reasoning_tokens=min(self.reasoning_tokens, self.output_tokens),
        )


def read_frame(usage: object) -> Frame | None:
    """The frame in a chunk's `usage`; `None` when there is nothing in it."""
    if not isinstance(usage, dict) or not usage:
        return None
    fields = cast(dict[str, object], usage)
    prompt = {**_fields(fields, "input_tokens_details"), **_fields(fields, "prompt_tokens_details")}
    completion = {**_fields(fields, "output_tokens_details"), **_fields(fields, "completion_tokens_details")}
    frame = Frame(
        input_tokens=_count(fields, "prompt_tokens", "input_tokens"),
        output_tokens=_count(fields, "completion_tokens", "output_tokens"),
        cached_tokens=_count(prompt, "cached_tokens")
        or _count(fields, "prompt_cache_hit_tokens", "cache_read_input_tokens", "cached_tokens"),
        cache_write_tokens=_count(prompt, *_CACHE_WRITES) or _count(fields, *_CACHE_WRITES),
        reasoning_tokens=_count(completion, "reasoning_tokens") or _count(fields, "reasoning_tokens"),
    )
    return frame if frame.input_tokens or frame.output_tokens else None


def _fields(fields: dict[str, object], name: str) -> dict[str, object]:
    found = fields.get(name)
    return cast(dict[str, object], found) if isinstance(found, dict) else {}


def _count(fields: dict[str, object], *names: str) -> int:
    for name in names:
        value = fields.get(name)
        if isinstance(value, str) and value.isdecimal() and len(value) < 16:
            value = int(value)
        if isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < 1e15:
            return int(value)
    return 0
