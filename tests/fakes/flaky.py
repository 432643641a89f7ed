"""A provider that fails a share of all requests, in all the ways that were reported: seeded, so that it does it again.

Invariant: what goes wrong next for a conversation depends on the seed, its goal and how often it asked; what the model
says depends on what was carried out so far, so a call that came to nothing is made again.
"""

from __future__ import annotations

import base64
import random
from collections import Counter
from collections.abc import Callable

from deploy.dev.model_rules import SentRequest
from deploy.dev.model_script import Answer, Script, ScriptedCall, pieces
from deploy.dev.model_server import Asked, ModelServer

# How our runtime begins the result of a call that it did not make.
_NOT_CALLED = "was not called"


class FlakyServer(ModelServer):
    """Fails `share` of its requests for goals with `marker`, of which there were `flaky`; `failed` counts how. `refused` is
    what a strict endpoint would not have taken."""

    def __init__(self, script: Script, *, seed: int, marker: str = "", share: float = 0.3) -> None:
        super().__init__(script)
        self._seed, self._marker, self._share = seed, marker, share
        self._requests: Counter[str] = Counter()
        self.failed: Counter[str] = Counter()
        self.refused: list[str] = []

    @property
    def flaky(self) -> int:
        return self._requests.total()

    def answer(self, body: bytes, headers: dict[str, str]) -> tuple[Asked, Answer, SentRequest | None]:
        asked, said, request = super().answer(body, headers)
        if request is None or asked.conversation is None:
            return asked, said, request
        goal = next(message.text for message in request.messages if message.role == "user")
        if self._marker not in goal:
            return asked, said, request
        right = self.script.turn(asked.conversation, carried_out(request))
        if right is None or (said.status != 200 and "no turn" not in str(said.body)):
            self.refused.append(str(said.body))
            return asked, said, request
        self._requests[goal] += 1
        chance = random.Random(f"{self._seed} {goal} {self._requests[goal]}")
        if chance.random() >= self._share:
            return asked, right, request
        name = chance.choice([name for name in FAULTS if right.calls or name != "malformed arguments"])
        self.failed[name] += 1
        return asked, FAULTS[name](right, chance), request


def carried_out(request: SentRequest) -> int:
    """The turns so far that were not in vain."""
    broken = {message.tool_call_id for message in request.messages if _NOT_CALLED in message.text}
    turns = [message for message in request.messages if message.role == "assistant"]
    return sum(not any(call.id in broken for call in turn.tool_calls or ()) for turn in turns)


def _limited(_: Answer, chance: random.Random) -> Answer:
    wish = chance.choice([{}, {"retry-after": "0"}, {"retry-after-ms": "20"}, {"retry-after": "soon"}])
    return Answer(status=429, headers=wish, body={"error": {"message": "Rate limit reached"}})


def _internal(_: Answer, chance: random.Random) -> Answer:
    return Answer(status=chance.choice([500, 502, 503, 529]), body="<html>Bad gateway</html>")


def _reset_before(_: Answer, __: random.Random) -> Answer:
    return Answer(base64=[], end="reset")


def _cut(right: Answer, chance: random.Random, end: str) -> Answer:
    """The right answer up to somewhere, also within an event."""
    whole = b"".join(pieces(right))
    upto = chance.randrange(len(whole) // 4, len(whole) - 60)
    text = base64.b64encode(whole[:upto]).decode()
    return Answer(base64=[text], end="reset" if end == "reset" else "eof", chunk_delay_s=0.01)


def _empty(_: Answer, chance: random.Random) -> Answer:
    return Answer(text=chance.choice(["", " \n"]), finish_reason="stop")


def _malformed(right: Answer, chance: random.Random) -> Answer:
    broken = [
        ScriptedCall(name=call.name, arguments=chance.choice(['{"counter": "st', "{counter: step", "[1, 2"]))
        for call in right.calls
    ]
    return Answer(calls=broken, finish_reason=chance.choice(["tool_calls", "length"]))


FAULTS: dict[str, Callable[[Answer, random.Random], Answer]] = {
    "rate limit": _limited,
    "internal error": _internal,
    "reset before the first delta": _reset_before,
    "reset after it": lambda right, chance: _cut(right, chance, "reset"),
    "cut stream": lambda right, chance: _cut(right, chance, "eof"),
    "empty turn": _empty,
    "malformed arguments": _malformed,
}
