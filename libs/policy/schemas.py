"""What a tool's schema has against a call, by field, in words for the model.

Invariant: the same check before the intent (executor) and again at the host (toolhost); a schema that is itself broken
refuses nothing, the host's tool is its own last judge.
"""

from collections.abc import Mapping, Sequence
from typing import Protocol, cast

import jsonschema

from libs.contracts.tools import ToolSpec

# Faults that one answer names; a model that made more has misread the schema.
FAULTS_MAX = 5
FAULT_CHARS_MAX = 300


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
        if validator is None or validator.is_valid(arguments):
            return None
        faults = sorted(
            validator.iter_errors(arguments), key=lambda fault: list(map(str, fault.absolute_path))
        )
        return "; ".join(_said(fault) for fault in faults[:FAULTS_MAX])

    def _validator(self, name: str) -> _Validator | None:
        spec = self._specs.get(name)
        if spec is None:
            return None
        if name not in self._validators:
            self._validators[name] = cast(_Validator, jsonschema.Draft202012Validator(spec.parameters))
        return self._validators[name]


def _said(fault: _Fault) -> str:
    where = ".".join(map(str, fault.absolute_path))
    message = fault.message[:FAULT_CHARS_MAX]
    return f"{where}: {message}" if where else message
