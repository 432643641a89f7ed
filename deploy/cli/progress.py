"""What a watched run does now and has cost so far, folded from its events.

Invariant: pure; time comes in as elapsed seconds.
"""

from deploy.cli.payloads import Fields, fields, items, text
from deploy.cli.terminal import one_line
from libs.contracts.views import EventView


class Progress:
    """The line below a running watch. `see` takes every event once, deltas too."""

    def __init__(self) -> None:
        self.activity = "waiting for an executor"
        self.iteration = 0
        self.tokens = 0
        # A sum with an unknown part is unknown; before the first model call there is none to tell.
        self.cost_usd: float | None = 0.0
        self._answers = 0
        self._writing = ""
        self._attempt: int = 0

    def see(self, event: EventView) -> None:
        """Fold one event in."""
        payload = event.payload
        match event.type:
            case "model.requested":
                self.iteration = _number(payload.get("iteration")) or self.iteration
                self.activity, self._writing = "thinking", ""
            case "model.delta":
                self._delta(payload)
            case "model.completed":
                usage = fields(payload.get("usage"))
                self.tokens += _number(usage.get("input_tokens")) + _number(usage.get("output_tokens"))
                self._spend(usage.get("cost_usd"))
                names = [text(call.get("name")) for call in items(payload.get("tool_calls"))]
                self.activity = "running " + ", ".join(names) if names else "answering"
            case "tool.requested":
                self.activity = f"running {text(payload.get('name'))}"
            case "tool.completed":
                self.activity = f"has run {text(payload.get('name'))}".rstrip()
            case "verification.requested":
                self.activity = "being verified"
            case "input.requested":
                self.activity = "waiting for you"
            case "run.claimed":
                self.activity = "starting"
            case "run.released":
                self.activity = f"released: {text(payload.get('reason'))}"
            case _:
                pass

    def line(self, elapsed_s: float) -> str:
        """Activity, iteration, tokens, cost and time."""
        return f"{one_line(self.activity, 60)} · {self.totals(elapsed_s)}"

    def totals(self, elapsed_s: float) -> str:
        """Iterations, tokens, cost and time."""
        cost = "cost unknown" if self.cost_usd is None else f"${self.cost_usd:.4f}"
        spent = f"{self.tokens:,} tokens · {cost} · " if self._answers else ""
        return f"iteration {self.iteration} · {spent}{elapsed_s:.1f} s"

    def _spend(self, cost_usd: object) -> None:
        self._answers += 1
        if self.cost_usd is not None and isinstance(cost_usd, int | float):
            self.cost_usd += cost_usd
        else:
            self.cost_usd = None

    def _delta(self, payload: Fields) -> None:
        attempt = _number(payload.get("attempt"))
        if attempt != self._attempt:
            # A later attempt replaces what the earlier one showed.
            self._attempt, self._writing = attempt, ""
        self._writing = (self._writing + text(payload.get("content")))[-200:]
        if self._writing.strip():
            self.activity = "writing: " + " ".join(self._writing.split())[-48:]


def _number(value: object) -> int:
    return value if isinstance(value, int) else 0
