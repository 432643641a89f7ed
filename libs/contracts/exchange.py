"""One HTTP request to a model and what came back, as a recording keeps it: one JSON object a line.

Invariant: the pieces joined are the bytes of the response as they came (what looked like a secret masked, length kept),
so that a line can be answered again byte by byte.
"""

import base64
from typing import Literal

from pydantic import BaseModel, ConfigDict


class Exchange(BaseModel):
    """`number` counts the requests of one model call, retries included. `status` 0: no response at all.

    `end`: `complete`: the response came to its end; `left`: the executor had read enough; `lost`: it broke off or fell
    silent, `reason` says how. `clipped` names what was too large to be kept whole. `body` is that of an error status.
    """

    model_config = ConfigDict(frozen=True, extra="ignore")

    format: Literal["perdure-wire/1"]
    run_id: str
    iteration: int
    number: int
    at: str
    request: str
    status: int = 0
    headers: dict[str, str] = {}
    body: str = ""
    # The pieces as they came: `text` when all of them are UTF-8 by themselves, else `base64`. `at_ms` since the request.
    text: list[str] | None = None
    base64: list[str] | None = None
    at_ms: list[int] = []
    end: Literal["complete", "left", "lost"] = "lost"
    reason: str = ""
    clipped: list[Literal["request", "response"]] = []

    @property
    def pieces(self) -> list[bytes]:
        """The response as it came."""
        if self.base64 is not None:
            return [base64.b64decode(piece) for piece in self.base64]
        return [piece.encode() for piece in self.text or ()]


class WireView(BaseModel):
    """What went over the wire in one model call: an exchange for every HTTP request."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    run_id: str
    sequence: int
    exchanges: list[Exchange]


def written(pieces: list[bytes]) -> dict[str, list[str]]:
    """The fields that hold these pieces."""
    try:
        return {"text": [piece.decode() for piece in pieces]}
    except UnicodeDecodeError:
        return {"base64": [base64.b64encode(piece).decode() for piece in pieces]}
