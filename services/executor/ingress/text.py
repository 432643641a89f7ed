"""Text between the wire and the log: no lone surrogates, cut only between code points.

Invariant: whatever leaves this module can be encoded as UTF-8.
"""

from typing import cast


def without_surrogates(text: str) -> str:
    """`text` with surrogate pairs joined and lone halves replaced by U+FFFD."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text


def clean(value: object) -> object:
    """A JSON value in which every string, keys too, is without lone surrogates.

    Raises `ValueError` for a number that JSON cannot carry.
    """
    match value:
        case str():
            return without_surrogates(value)
        case dict():
            entries = cast(dict[str, object], value)
            return {without_surrogates(key): clean(entry) for key, entry in entries.items()}
        case list():
            return [clean(entry) for entry in cast(list[object], value)]
        case float() if value != value or value in (float("inf"), float("-inf")):
            raise ValueError("a number is out of range")
        case _:
            return value


def one_line(text: str, chars_max: int) -> str:
    """The beginning of `text` on one line, with an ellipsis when there is more."""
    flat = " ".join(text.split())
    return flat if len(flat) <= chars_max else f"{flat[: chars_max - 1]}…"


def clipped(text: str, chars_max: int) -> str:
    """`text`, or its head and tail with a note of how much is missing between them; head and tail share `chars_max`."""
    if len(text) <= chars_max:
        return text
    head = chars_max * 2 // 3
    tail = chars_max - head
    missing = len(text) - head - tail
    return f"{text[:head]}\n[... {missing} characters left out ...]\n{text[len(text) - tail :]}"
