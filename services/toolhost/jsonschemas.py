"""Holds a JSON document against a schema, in a process that can be killed.

Run as `python -I jsonschemas.py`: patterns in a schema, and references that lead to themselves, can take for ever, and a
small schema can ask for a great deal. Invariant: the process has `CPU_S` of a processor, however busy the machine is, and the
host waits at most `PATIENCE_S` for an answer; nothing is fetched: a reference leads into the schema itself or nowhere.
"""

import asyncio
import json
import resource
import signal
import sys
from collections.abc import Iterator
from itertools import islice
from typing import Any, NamedTuple, Protocol, cast

import jsonschema
import jsonschema.exceptions
import jsonschema_specifications  # pyright: ignore[reportMissingTypeStubs] it has none
import msgspec
from jsonschema.validators import validator_for
from referencing.exceptions import Unresolvable

from libs.contracts.evidence import SCHEMA_FAULTS_MAX

# A sane schema needs milliseconds on a usual document; starting the process takes a few tenths of a second.
CPU_S = 2
PATIENCE_S = 30.0
# What a run writes for others to read; more is a data set, which a command of the task's own checks better.
DOCUMENT_BYTES_MAX = 4 << 20
FAULT_CHARS_MAX = 300
# A document takes some twenty times its size in memory.
_MEMORY_BYTES_MAX = 1 << 30
# Faults come as they are found; so many are put in order.
_LOOKED_AT_MAX = 1_000


class _Fault(Protocol):
    """What is used of jsonschema's errors."""

    json_path: str
    message: str


class Held(NamedTuple):
    """What a document has against it (`[]`: it fits), or why that cannot be said."""

    faults: list[str]
    problem: str = ""


_TOO_LONG = Held([], "takes too long to be held against the schema; use simpler patterns and references")


class _Told(msgspec.Struct, frozen=True, kw_only=True):
    faults: list[str] = []
    problem: str = ""


async def held_against(schema: dict[str, object], document: bytes) -> Held:
    """A document against a schema (the draft that it names, else 2020-12)."""
    if len(document) > DOCUMENT_BYTES_MAX:
        return Held([], f"is larger than {DOCUMENT_BYTES_MAX >> 20} MiB; check it with a command")
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-I", __file__),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
        env={},
        start_new_session=True,
    )
    try:
        async with asyncio.timeout(PATIENCE_S):
            answer, _ = await process.communicate(msgspec.json.encode(schema) + b"\n" + document)
    except TimeoutError:
        return _TOO_LONG
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode == -signal.SIGXCPU:
        return _TOO_LONG
    try:
        told = msgspec.json.decode(answer, type=_Told)
    except msgspec.MsgspecError:
        return Held([], "could not be held against the schema: what looks at it ran out of memory, or ended")
    return Held(told.faults, told.problem)


def main() -> None:
    """The worker: the schema is the first line of the input, the document the rest."""
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_S, CPU_S + 1))
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES_MAX, _MEMORY_BYTES_MAX))
    # The signal at the end of that time would leave the document on the host's disk.
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    schema, _, document = sys.stdin.buffer.read().partition(b"\n")
    held = _held(json.loads(schema), document)
    sys.stdout.write(json.dumps(held._asdict()))


def _held(schema: dict[str, Any], document: bytes) -> Held:
    try:
        loaded = json.loads(document.decode(), parse_constant=_no_json)
    except (ValueError, RecursionError) as error:
        return Held([], f"is no JSON: {str(error)[:FAULT_CHARS_MAX]}")
    try:
        kind = cast(Any, validator_for(schema, default=jsonschema.Draft202012Validator))
    except (TypeError, ValueError):
        return Held([], "the schema is none: $.$schema names no draft")
    try:
        kind.check_schema(schema)
        validator = kind(schema, registry=jsonschema_specifications.REGISTRY)
        faults = cast("Iterator[_Fault]", validator.iter_errors(loaded))
        found = sorted(islice(faults, _LOOKED_AT_MAX), key=lambda fault: fault.json_path)
    except jsonschema.exceptions.SchemaError as error:
        return Held([], f"the schema is none: {_said(cast(_Fault, error))}")
    except RecursionError:
        return Held([], "the schema, or the document, is nested too deeply")
    except Unresolvable as error:
        return Held([], f"the schema refers to what it does not hold: {str(error)[:FAULT_CHARS_MAX]}")
    return Held([_said(fault) for fault in found[:SCHEMA_FAULTS_MAX]])


def _no_json(name: str) -> object:
    raise ValueError(f"{name} is no number of JSON")


def _said(fault: _Fault) -> str:
    return f"{fault.json_path}: {fault.message}"[:FAULT_CHARS_MAX]


if __name__ == "__main__":
    main()
