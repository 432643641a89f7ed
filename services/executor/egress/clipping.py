"""Long texts in the outbound copy: the beginning and the end, and between them how much is missing and where it is.

Invariant: pure; a cut falls between code points, a text that fits is untouched, and the log keeps all of it.
"""

from typing import cast

from services.executor.egress.results import RESULT, lines_of
from services.executor.ingress.tokens import tokens_in

# Endings of outputs say how it went, beginnings what ran; a little more of the latter, as heads are quoted more.
_HEAD_SHARE = 2 / 3
# A cut that misses the wanted size is made again, this much shorter.
_SHRINK = 0.85
# No character has more tokens by our estimate.
_TOKENS_A_CHAR_MAX = 3
# Below this a text says nothing any more.
TEXT_TOKENS_MIN = 40


def clipped(text: str, *, chars_max: int, tokens_max: int | None = None, call_id: str | None = None) -> str:
    """`text`, or its head and tail with a mark. `call_id`: the result of this call is read on with `read_file`."""
    keep = min(len(text), chars_max)
    if tokens_max is not None and keep > tokens_max // _TOKENS_A_CHAR_MAX:
        tokens = tokens_in(text.encode()) * keep // max(1, len(text))
        if tokens > tokens_max:
            keep = keep * tokens_max // tokens
        while keep > TEXT_TOKENS_MIN and tokens_in(_cut(text, keep, None).encode()) > tokens_max:
            keep = int(keep * _SHRINK)
    return _cut(text, keep, call_id) if keep < len(text) else text


def clipped_strings(value: object, tokens_max: int) -> object:
    """A JSON value whose long strings are clipped."""
    match value:
        case str():
            return clipped(value, chars_max=len(value), tokens_max=tokens_max)
        case dict():
            entries = cast(dict[str, object], value)
            return {key: clipped_strings(entry, tokens_max) for key, entry in entries.items()}
        case list():
            return [clipped_strings(entry, tokens_max) for entry in cast(list[object], value)]
        case _:
            return value


def _cut(text: str, keep: int, call_id: str | None) -> str:
    """`keep` characters of the text, and the mark."""
    if keep >= len(text):
        return text
    head = int(keep * _HEAD_SHARE)
    tail = keep - head
    where = ""
    if call_id is not None:
        line = len(lines_of(text[:head]))
        where = f'; read_file {{"path": "{RESULT}{call_id}", "offset": {line}}} gives them'
    return (
        f"{text[:head]}\n[... {len(text) - keep} characters left out{where} ...]\n{text[len(text) - tail :]}"
    )
