"""Fragments of tool calls → calls, for every way in which providers number, name and repeat them.

Invariant: a call is known by where it stands in the stream; the provider's own id only helps to tell calls apart
and never leaves this file. No fragment is joined to a call whose arguments are already whole.

Which call a fragment belongs to, first match:
- an index that was seen, with an id that was seen there: that call
- an index that was seen, with another id and either a name or a whole call before it: a new call on that index
- an index that was seen: the call that has it now, unless the fragment begins another one
- a new index without id and name in a stream that had no indices so far: the call that streams now
- no index, but name, id, place in the list and arguments of a call: a snapshot of that call
- no index, an id that was seen: that call, unless the fragment begins another one
- no index, no id, no name: the call that streams now
- no index, no id, the name of the call that streams now and is not whole: that call
- anything else: a new call
A named fragment begins another call when the call before it is whole and the fragment is not that call once more.
"""

import json
from collections.abc import Mapping
from itertools import pairwise
from typing import NamedTuple, cast

import msgspec

from libs.contracts.ids import call_id
from libs.contracts.values import ModelToolCall
from services.executor.ingress.acceptance import CALLS_SHOWN_MAX
from services.executor.ingress.arguments import Arguments, read_arguments
from services.executor.ingress.chunks import CallDelta, FunctionDelta, number_of
from services.executor.ingress.names import meant
from services.executor.ingress.scan import ObjectScan
from services.executor.ingress.text import clean, clipped, without_surrogates

# What is kept of arguments that nobody could read.
RAW_ARGUMENTS_CHARS_MAX = 2_000
# Longer than any tool's name; what is longer is no name.
NAME_CHARS_MAX = 256
# The opaque part of a call (a signature, say) goes back with every request.
EXTRA_CHARS_MAX = 64 * 1024


class Made(NamedTuple):
    """The calls of a turn, the first `CALLS_SHOWN_MAX` of them; `dropped` more came behind. `cut_off`: the last one's
    arguments end in the middle; `bare`: they have not begun."""

    calls: list[ModelToolCall]
    cut_off: bool
    bare: bool
    dropped: int


class CallList:
    """The calls of one turn, in the order they came."""

    def __init__(self) -> None:
        self._calls: list[_Call] = []
        self._slots: dict[int, _Call] = {}
        self._known: dict[tuple[int | None, str], _Call] = {}
        self._current: _Call | None = None
        self.fragments = 0  # How many said something.

    @property
    def chars(self) -> int:
        """What the model wrote for all calls together."""
        return sum(len(call.name) + call.chars for call in self._calls)

    def take(self, fragment: CallDelta, position: int) -> None:
        """Add one fragment; `position` is its place in its chunk's list."""
        function = fragment.function or FunctionDelta()
        index = number_of(fragment.index)
        provider_id = fragment.id if isinstance(fragment.id, str) else ""
        name = _name(function.name) or _name(fragment.name)
        text = next(
            (
                _text(found)
                for found in (function.arguments, fragment.arguments, function.parameters, function.input)
                if found is not None
            ),
            "",
        )
        if not (name or text or provider_id):
            return
        self.fragments += 1
        if index is None:
            call = self._find_unnumbered(provider_id, name, text, position)
        else:
            call = self._find_numbered(index, provider_id, name, text)
        if call is None:
            call = _Call()
            self._calls.append(call)
        if index is not None:
            self._slots[index] = call
        if provider_id:
            self._known[index, provider_id] = self._known[None, provider_id] = call
            call.provider_id = call.provider_id or provider_id
        self._current = call
        call.add(name, text)
        if isinstance(fragment.extra_content, dict):
            call.extra = cast(dict[str, object], fragment.extra_content) or call.extra

    def finish(
        self, iteration: int, schemas: Mapping[str, Mapping[str, object]], names: Mapping[str, str]
    ) -> Made:
        """The calls under our ids. `names`: what the provider calls a tool → its name."""
        calls: list[ModelToolCall] = []
        cut_off = bare = False
        said = [call for call in self._calls if call.name or call.chars]
        for index, call in enumerate(said[:CALLS_SHOWN_MAX]):
            name = meant(without_surrogates(call.name)[:NAME_CHARS_MAX], schemas, names)
            read = call.read(schemas.get(name))
            cut_off, bare = read.cut_off, not call.text.strip()
            raw = (
                None
                if read.problem is None
                else clipped(without_surrogates(call.text), RAW_ARGUMENTS_CHARS_MAX)
            )
            calls.append(
                ModelToolCall(
                    call_id=call_id(iteration, index),
                    name=name,
                    arguments=read.value,
                    raw_arguments=raw,
                    problem=read.problem,
                    extra_content=_extra(call.extra),
                )
            )
        return Made(calls, cut_off, bare, len(said) - len(calls))

    def _find_numbered(self, index: int, provider_id: str, name: str, text: str) -> "_Call | None":
        call = self._slots.get(index)
        if call is None:
            return self._current if not self._slots and not provider_id and not name else None
        if provider_id and call.provider_id and provider_id != call.provider_id:
            known = self._known.get((index, provider_id))
            if known is not None:
                return known
            return None if name or call.whole else call
        return None if call.ends_before(name, text) else call

    def _find_unnumbered(self, provider_id: str, name: str, text: str, position: int) -> "_Call | None":
        if name and position < len(self._calls):
            there = self._calls[position]
            same = there.name == name and there.provider_id == provider_id
            if same and there.chars == len(text) and there.text == text and there.whole:
                return there
        if provider_id:
            known = self._known.get((None, provider_id))
            return None if known is not None and known.ends_before(name, text) else known
        if not name or self._current is None:
            return self._current
        return self._current if name == self._current.name and not self._current.whole else None


class _Call:
    """A call while it streams."""

    def __init__(self) -> None:
        self.provider_id = ""
        self.name = ""
        self.chars = 0
        self.extra: dict[str, object] | None = None
        self._pieces: list[str] = []
        self._joined = ""
        self._joined_pieces = 0
        self._scan = ObjectScan()
        self._scanned_pieces = 0
        self._parsed: bool | None = None  # Whether what the scan calls closed is JSON; asked once.

    @property
    def text(self) -> str:
        """The arguments so far; joined only when somebody asks, so that many small pieces cost no more than one."""
        if self._joined_pieces < len(self._pieces):
            self._joined = "".join((self._joined, *self._pieces[self._joined_pieces :]))
            self._joined_pieces = len(self._pieces)
        return self._joined

    @property
    def whole(self) -> bool:
        """Whether nothing can follow these arguments any more. Each piece is looked at once, however often one asks."""
        for piece in self._pieces[self._scanned_pieces :]:
            self._scan.take(piece)
        self._scanned_pieces = len(self._pieces)
        if not self._scan.closed:
            return False
        if self._parsed is None:
            self._parsed = read_arguments(self.text, None).problem is None
        return self._parsed

    def ends_before(self, name: str, text: str) -> bool:
        """Whether a fragment with this name and text begins another call."""
        if not name or not self.whole:
            return False
        return name != self.name or text not in ("", self.text)

    def add(self, name: str, text: str) -> None:
        if not self.name:
            self.name = name
        elif name and name != self.name and not self._pieces:
            # A name that came in pieces, or grew.
            self.name = name if name.startswith(self.name) else self.name + name
        if not text or (len(text) == self.chars and text == self.text and self.whole):
            return  # Nothing, or the whole call once more.
        self._pieces.append(text)
        self.chars += len(text)

    def read(self, schema: Mapping[str, object] | None) -> Arguments:
        """The arguments, read as the sum of the pieces; if that is no JSON and each piece repeats the one before it
        and goes on, they were snapshots and the last one counts."""
        read = read_arguments(without_surrogates(self.text), schema)
        if read.problem is None or len(self._pieces) < 2:
            return read
        if all(later.startswith(earlier) for earlier, later in pairwise(self._pieces)):
            last = read_arguments(without_surrogates(self._pieces[-1]), schema)
            return last if last.problem is None else read
        return read


def _name(name: object) -> str:
    return name.strip() if isinstance(name, str) else ""


def _text(arguments: object) -> str:
    """Arguments as text: usually they are; some providers send the value itself. One that is no object stays wrong."""
    if arguments is None or isinstance(arguments, str):
        return arguments or ""
    try:
        return json.dumps(arguments)
    except (ValueError, RecursionError):
        return "[]"


def _extra(extra: dict[str, object] | None) -> dict[str, object] | None:
    """What the provider wants back with the call, if it can be stored and is of a sensible size."""
    if extra is None:
        return None
    try:
        kept = cast(dict[str, object], clean(extra))
        return kept if len(msgspec.json.encode(kept)) <= EXTRA_CHARS_MAX else None
    except (ValueError, RecursionError):
        return None
