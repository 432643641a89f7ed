"""Embeddings of the scripted endpoint: the same text has the same vector everywhere, and texts that share parts of their
words are near each other.

Invariant: no weights and no chance: each three letters of a word count in one of `DIMENSION` places.
"""

import math
import re
import zlib

import msgspec

DIMENSION = 256
# As the endpoints that take the fewest.
INPUTS_MAX = 10
_WORDS = re.compile(r"\w+")


class _Request(msgspec.Struct, frozen=True):
    model: str
    input: list[str] | str


class Embeddings:
    """Answers requests, and counts the texts that it was given."""

    def __init__(self) -> None:
        self.texts = 0

    def answer(self, body: bytes) -> tuple[int, object]:
        """Status and body of the answer to a request."""
        try:
            request = msgspec.json.decode(body, type=_Request)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            return 400, _refusal(f"We could not parse the JSON body: {error}")
        texts = [request.input] if isinstance(request.input, str) else request.input
        if len(texts) > INPUTS_MAX:
            return 400, _refusal(f"batch size is invalid, it should not be larger than {INPUTS_MAX}")
        self.texts += len(texts)
        data = [
            {"object": "embedding", "index": index, "embedding": embedded(text)}
            for index, text in enumerate(texts)
        ]
        tokens = sum(len(text) for text in texts) // 4
        usage = {"prompt_tokens": tokens, "total_tokens": tokens}
        return 200, {"object": "list", "model": request.model, "data": data, "usage": usage}


def embedded(text: str) -> list[float]:
    """The vector of a text, of length 1."""
    places = [0.0] * DIMENSION
    for word in _WORDS.findall(text.lower()):
        padded = f" {word} "
        for at in range(len(padded) - 2):
            places[zlib.crc32(padded[at : at + 3].encode()) % DIMENSION] += 1.0
    length = math.sqrt(sum(place * place for place in places)) or 1.0
    return [round(place / length, 6) for place in places]


def _refusal(message: str) -> object:
    return {"error": {"message": message, "type": "invalid_request_error", "param": None, "code": None}}
