"""Texts in UTF-16 as the tools see them: in UTF-8, and back. PURE.

Invariant: only a text that comes back byte for byte is taken for one; everything else stays the bytes that it is. UTF-8
and what merely resembles it are never converted: there the bytes themselves are edited.
"""

import codecs
from collections.abc import Callable
from typing import NamedTuple

from services.toolhost.errors import InvalidArguments

_NAMES = {codecs.BOM_UTF16_LE: "utf-16-le", codecs.BOM_UTF16_BE: "utf-16-be"}
UTF_16_MARKS = tuple(_NAMES)


class Utf8(NamedTuple):
    """The text in UTF-8, without a mark where it was UTF-16; `back` makes the file's own bytes of such a text. `said` is
    the encoding's name where there is something to say."""

    data: bytes
    back: Callable[[bytes], bytes]
    said: str


def as_utf8(data: bytes) -> Utf8:
    """The file's bytes for a tool that works on UTF-8."""
    mark = data[:2]
    name = _NAMES.get(mark)
    if name is None:
        return Utf8(data, bytes, "")

    def back(text: bytes) -> bytes:
        return mark + text.decode("utf-8").encode(name)

    try:
        text = data[2:].decode(name).encode("utf-8")
    except UnicodeError:
        return Utf8(data, bytes, "")
    if b"\0" in text or back(text) != data:
        return Utf8(data, bytes, "")
    return Utf8(text, back, name.upper())


def encoded(text: str, name: str) -> bytes:
    """The bytes of an argument; a surrogate escape stands for one byte that is not UTF-8, as in the names and texts that
    Python reads. Raises `InvalidArguments`, naming it."""
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        raise InvalidArguments(f"{name} contains half a surrogate pair and is not valid text") from None
