"""Arbitrary values of any message struct, drawn from its own declaration.

Invariant: what is drawn can be written as JSON and read back: text without surrogates, integers of 64 bits, finite
numbers.
"""

from __future__ import annotations

import functools
from typing import Any

import msgspec
from hypothesis import strategies as st
from msgspec import inspect

from libs.contracts.envelope import AnyEvent, Event

TEXT = st.text(st.characters(exclude_categories=("Cs",)), max_size=20)
INTEGERS = st.integers(-(2**63), 2**63 - 1)
NUMBERS = st.floats(allow_nan=False, allow_infinity=False)
SCALARS = st.none() | st.booleans() | INTEGERS | TEXT
ANYTHING = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=5,
)


@functools.cache
def structs(kind: type[msgspec.Struct]) -> st.SearchStrategy[Any]:
    """Any value of a struct."""
    return _of(inspect.type_info(kind))


def events(kind: type[AnyEvent], sequence: int = 1) -> st.SearchStrategy[Event]:
    """Any event of a kind, at a place in a run."""
    return structs(kind).map(
        lambda body: Event(sequence, "run_0_" + "0" * 26, "2026-11-29T12:00:00.000Z", body)
    )


def _of(info: inspect.Type) -> st.SearchStrategy[Any]:
    match info:
        case inspect.StructType(cls=cls, fields=fields):
            return st.builds(cls, **{field.name: _of(field.type) for field in fields})
        case inspect.UnionType(types=types):
            return st.one_of(*map(_of, types))
        case inspect.LiteralType(values=values):
            return st.sampled_from(values)
        case inspect.EnumType(cls=cls):
            return st.sampled_from(list(cls))
        case inspect.ListType(item_type=item):
            return st.lists(_of(item), max_size=3)
        case inspect.DictType(key_type=key, value_type=value):
            return st.dictionaries(_of(key), _of(value), max_size=3)
        case inspect.CustomType(cls=cls) if cls is object:
            return ANYTHING
        case _:
            return _PLAIN[type(info)]


_PLAIN: dict[type[inspect.Type], st.SearchStrategy[Any]] = {
    inspect.StrType: TEXT,
    inspect.IntType: INTEGERS,
    inspect.FloatType: NUMBERS,
    inspect.BoolType: st.booleans(),
    inspect.NoneType: st.none(),
    inspect.AnyType: ANYTHING,
}
