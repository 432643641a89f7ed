"""What a tool's schema has against a call, by field, in words for the model.

Invariant: the same check before the intent (executor) and again at the host (toolhost); a schema that is itself broken
refuses nothing, the host's tool is its own last judge.
"""

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Protocol, cast

import jsonschema
import msgspec
from jsonschema_specifications import REGISTRY  # pyright: ignore[reportMissingTypeStubs] it has none
from referencing.exceptions import Unresolvable

from libs.contracts.tools import ToolSpec

# Faults that one answer names; a model that made more has misread the schema.
FAULTS_MAX = 5
FAULT_CHARS_MAX = 300
# Schemas whose soundness is remembered: holding one against its own schema costs milliseconds.
SOUND_MAX = 1_024


class _Fault(Protocol):
    """What is used of jsonschema's errors."""

    message: str
    absolute_path: Sequence[str | int]


class _Validator(Protocol):
    def is_valid(self, instance: object) -> bool: ...

    def iter_errors(self, instance: object) -> Sequence[_Fault]: ...


class Schemas:
    """The schemas of some tools, each compiled when it is first used."""

    def __init__(self, specs: Mapping[str, ToolSpec]) -> None:
        self._specs = specs
        self._validators: dict[str, _Validator] = {}

    def problem(self, name: str, arguments: dict[str, object]) -> str | None:
        """What is wrong with the arguments; `None` when nothing is, or when the tool is not known here."""
        validator = self._validator(name)
        try:
            if validator is None or validator.is_valid(arguments):
                return None
            faults = sorted(
                validator.iter_errors(arguments), key=lambda fault: list(map(str, fault.absolute_path))
            )
        except (Unresolvable, re.error, RecursionError):
            # Broken in a way that shows only here: a reference that leads nowhere or in circles, no pattern.
            return None
        return "; ".join(_said(fault) for fault in faults[:FAULTS_MAX])

    def _validator(self, name: str) -> _Validator | None:
        spec = self._specs.get(name)
        if spec is None:
            return None
        if name not in self._validators:
            if not _sound(msgspec.json.encode(spec.parameters)):
                return None
            # References lead into the schema itself: nobody's schema has this process ask another server.
            made = jsonschema.Draft202012Validator(spec.parameters, registry=REGISTRY)
            self._validators[name] = cast(_Validator, made)
        return self._validators[name]


@lru_cache(SOUND_MAX)
def _sound(schema: bytes) -> bool:
    """Whether a schema is one."""
    try:
        jsonschema.Draft202012Validator.check_schema(msgspec.json.decode(schema))
    except (jsonschema.SchemaError, RecursionError):
        return False
    return True


def _said(fault: _Fault) -> str:
    where = ".".join(map(str, fault.absolute_path))
    message = fault.message[:FAULT_CHARS_MAX]
    return f"{where}: {message}" if where else message
