"""What lies between a process and the twin: how long things take on their way, and what never arrives.

Invariant: the server does what arrives at one moment, whole; everything that can go wrong goes wrong on the way there,
on the way back, or in the process that asked.
"""

from typing import NamedTuple, Protocol

from libs.contracts.errors import PerdureError


class Op(NamedTuple):
    """An operation of a process (`client`) on the server, or something that the server brings to a process."""

    client: str
    kind: str
    subject: str


class Fate(NamedTuple):
    """`there_s`: until the server does it (`None`: never); `back_s`: from then until the caller knows (`None`: never).

    `kept`: a message that is published is not lost with its stream before anybody sees it. `refusal`: what the server says
    instead of doing it.
    """

    there_s: float | None = 0.0
    back_s: float | None = 0.0
    kept: bool = True
    refusal: PerdureError | None = None


class Network(Protocol):
    """Decides what becomes of each operation and each delivery; `done` tells what the server did."""

    def fate(self, op: Op) -> Fate: ...

    def delivery_s(self, op: Op) -> float | None:
        """How long something takes from the server to a process; `None`: it is lost."""
        ...

    def done(self, op: Op, outcome: str) -> None: ...


class QuietNetwork:
    """Nothing takes time and nothing is lost."""

    def fate(self, op: Op) -> Fate:
        del op
        return _AT_ONCE

    def delivery_s(self, op: Op) -> float | None:
        del op
        return 0.0

    def done(self, op: Op, outcome: str) -> None:
        del op, outcome


_AT_ONCE = Fate()
