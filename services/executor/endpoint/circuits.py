"""Circuit breakers, one a model, across the runs of this process: an endpoint that is down is left alone.

Invariant: pure; time is an argument. While a circuit is open nobody asks but one probe at a time, and the first answer
closes it. One call alone never opens one, nor do two: their own waits are their restraint.

| state     | what happens |
|-----------|--------------|
| closed    | everybody asks; `FAILURES_MAX` failures in a row, of at least `CALLS_MIN` calls, open it |
| open      | nobody asks for `OPEN_S`, twice as long each time in a row, at most `OPEN_MAX_S` |
| half open | one attempt is let through: an answer closes the circuit, a failure opens it again |

A failure is the provider's: no connection, a broken stream, a 5xx. A rate limit is none (the endpoint lives, and says
itself when to come back), and neither is a refusal of what was asked.
"""

from typing import Literal

# More than one call makes by itself (`completion.Patience`).
FAILURES_MAX = 10
CALLS_MIN = 3
# As long as a run is parked at least; then as patient with the endpoint as a parked run is in the end.
OPEN_S = 30.0
OPEN_MAX_S = 300.0
# Tasks may name any model; of more than this the one that failed longest ago is forgotten.
CIRCUITS_MAX = 256

# What an attempt says about the endpoint: it works, it answers at least, it does not, or nothing (it was broken off).
Standing = Literal["well", "there", "failed", "unknown"]


class _Circuit:
    def __init__(self) -> None:
        self.failures = 0
        self.openings = 0
        self.until: float | None = None
        self.probing = False
        self.cause = ""
        self.calls: set[int] = set()


class Circuits:
    """The circuits of one process. `now` is monotonic seconds."""

    def __init__(self) -> None:
        # Only models that failed since their last good turn.
        self._failing: dict[str, _Circuit] = {}

    def admit(self, model: str, now: float) -> bool:
        """Whether the model may be asked now. Who is admitted tells what came of it (`note`)."""
        circuit = self._failing.get(model)
        if circuit is None or circuit.until is None:
            return True
        if now < circuit.until or circuit.probing:
            return False
        circuit.probing = True
        return True

    def cause(self, model: str) -> str:
        """What went wrong last."""
        circuit = self._failing.get(model)
        return circuit.cause if circuit is not None else ""

    def note(self, model: str, standing: Standing, now: float, *, call: int = 0, cause: str = "") -> None:
        """What an attempt, admitted before, says about the endpoint; `call` is whose attempt it was."""
        if standing == "well":
            self._failing.pop(model, None)
            return
        circuit = self._failing.get(model)
        if standing == "failed":
            self._fail(model, circuit or _Circuit(), now, call, cause)
        elif circuit is not None and circuit.probing:
            circuit.probing = False
            if standing == "there":
                # Others may ask again; the next failure is one too many.
                circuit.until, circuit.failures = None, FAILURES_MAX - 1

    def summary(self, now: float) -> str:
        """The circuits that are not closed, for people; empty when all is well."""
        told = [
            f"{model} ({'is probed' if now >= circuit.until else f'for {circuit.until - now:.0f} s'})"
            for model, circuit in self._failing.items()
            if circuit.until is not None
        ]
        return ", ".join(told)

    def _fail(self, model: str, circuit: _Circuit, now: float, call: int, cause: str) -> None:
        self._failing.pop(model, None)
        while len(self._failing) >= CIRCUITS_MAX:
            self._failing.pop(next(iter(self._failing)))
        self._failing[model] = circuit
        circuit.failures += 1
        circuit.cause = cause
        if len(circuit.calls) < CALLS_MIN:
            circuit.calls.add(call)
        still_open = circuit.until is not None and now < circuit.until
        if circuit.failures < FAILURES_MAX or len(circuit.calls) < CALLS_MIN or still_open:
            # An attempt that began before the circuit opened says nothing new.
            return
        circuit.until = now + min(OPEN_S * 2**circuit.openings, OPEN_MAX_S)
        circuit.openings = min(circuit.openings + 1, 16)
        circuit.probing = False
