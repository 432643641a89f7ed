"""Secrets in what tools say and what is recorded: replaced by a mark. PURE.

Invariant: this is the one place where it happens. No line is added or lost, what was redacted once stays as it is, and a
part of a text is redacted like the whole of it: whoever shows a part hands over what stands around it.
"""

from collections.abc import Callable, Collection, Iterable
from itertools import pairwise
from typing import cast

from libs.policy.secret_forms import has_key, key_spans, spans

MARK = "[redacted]"
MARK_BYTES = MARK.encode()
# What has to stand around a part, so that a secret which reaches into it is seen: more than the longest key.
AROUND_BYTES = 16 * 1024
# Values by which others find something again. A name is no place for a secret, and another name finds nothing.
_NAMES = frozenset({"path", "paths", "changed", "protected_folders"})


def _nothing() -> Collection[bytes]:
    return ()


class Redaction:
    """Redacts for one process. `known` gives the secrets that it knows now."""

    def __init__(self, known: Callable[[], Collection[bytes]] = _nothing) -> None:
        self._known = known

    def text(self, text: str) -> str:
        """`text` without secrets."""
        return self.part(text, 0, len(text))

    def part(self, text: str, start: int, end: int) -> str:
        """`text[start:end]` without secrets, also without those that only reach into it."""
        data = text.encode("utf-8", "surrogatepass")
        found = spans(data, self._known())
        if not found:
            return text[start:end]
        first = len(text[:start].encode("utf-8", "surrogatepass"))
        last = first + len(text[start:end].encode("utf-8", "surrogatepass"))
        inside = [
            (max(first, begin), min(last, stop)) for begin, stop in found if begin < last and stop > first
        ]
        kept = [first, *(edge for span in inside for edge in span), last]
        pieces = [data[begin:stop] for begin, stop in list(pairwise(kept))[::2]]
        return MARK_BYTES.join(pieces).decode("utf-8", "surrogatepass")

    def finds(self, data: bytes) -> bool:
        """Whether there is something secret in a file."""
        return bool(spans(data, self._known()))

    def lines(self, lines: Iterable[str]) -> list[str]:
        """Lines without secrets, one for each."""
        return self.text("\n".join(lines)).split("\n")

    def value(self, value: object) -> object:
        """A JSON value whose texts have no secrets, names aside."""
        match value:
            case str():
                return self.text(value)
            case dict():
                fields = cast(dict[str, object], value)
                return {name: each if name in _NAMES else self.value(each) for name, each in fields.items()}
            case list() | tuple():
                return [self.value(each) for each in cast(list[object], value)]
            case _:
                return value


def key_lines(data: bytes) -> frozenset[int]:
    """The numbers (from 1) of lines that belong to private keys of several lines."""
    if not has_key(data):
        return frozenset()
    return frozenset(data.count(b"\n", 0, start) + 1 for start, end in key_spans(data) if end > start)
