"""A recording of a run's traffic with its model, as a script: the scripted model answers what was answered then.

Invariant: every response comes back byte by byte, in the pieces in which it came and with the end that it had; what was
clipped when it was recorded is refused, because it would be another response.

A recording is what `perdure runs export --wire` gives: an `Exchange` a line. Requests of the same turn are answered in
their order, so that a fault and its retry come again.
"""

import msgspec
from pydantic import ValidationError

from deploy.dev.model_rules import SentRequest, turn_of
from deploy.dev.model_script import Answer, Conversation, Script
from libs.contracts.exchange import Exchange


def replayed(recording: bytes) -> Script:
    """The script. Raises `ValueError` naming the line that is no exchange or not whole."""
    turns: dict[int, list[Answer]] = {}
    for number, line in enumerate(recording.splitlines(), 1):
        if not line.strip():
            continue
        try:
            exchange = Exchange.model_validate_json(line)
        except ValidationError as error:
            raise ValueError(f"line {number} is no exchange: {error.errors()[0]['msg']}") from error
        if "response" in exchange.clipped:
            raise ValueError(f"the response in line {number} was clipped when it was recorded")
        turns.setdefault(_turn(exchange), []).append(answer_of(exchange))
    if not turns:
        raise ValueError("there is no exchange in this recording")
    unknown = Answer(status=400, body={"error": {"message": "this turn was not recorded"}})
    answers = [turns.get(turn, [unknown]) for turn in range(max(turns) + 1)]
    found = [tries[0] if len(tries) == 1 else Answer(attempts=tries) for tries in answers]
    return Script(conversations=[Conversation(turns=found)])


def answer_of(exchange: Exchange) -> Answer:
    """The answer that gives this response again."""
    if exchange.status >= 400:
        return Answer(status=exchange.status, headers=dict(exchange.headers), body=exchange.body)
    # A silence came to its end by the client's patience, anything else by the connection's.
    lost = "hang" if "Timeout" in exchange.reason else "reset"
    end = lost if exchange.end == "lost" else "complete"
    if exchange.base64 is not None:
        return Answer(base64=exchange.base64, end=end)
    return Answer(raw=exchange.text or [], end=end)


def _turn(exchange: Exchange) -> int:
    """Which turn was asked for; a request that was clipped says it by its iteration."""
    try:
        return turn_of(msgspec.json.decode(exchange.request, type=SentRequest))
    except msgspec.DecodeError:
        return exchange.iteration - 1
