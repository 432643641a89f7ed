"""What passes between the judge and its endpoint.

Invariant: nothing of a vendor's; the key is shown in no text of these.
"""

from collections.abc import Mapping
from typing import NamedTuple


class Access(NamedTuple):
    """The endpoint and the model to ask. `base_url`: `None` is the client's own."""

    key: str
    base_url: str | None
    model: str

    def __repr__(self) -> str:
        return f"Access(model={self.model!r})"


class Answered(NamedTuple):
    """What the model said; tokens are 0 where they are not told."""

    text: str
    input_tokens: int
    output_tokens: int


class Faulty(Exception):
    """There is no answer. `status` is 0 without a response; `headers` have lower-case names."""

    def __init__(self, message: str, status: int, headers: Mapping[str, str], *, transient: bool) -> None:
        super().__init__(message)
        self.message = message
        self.status = status
        self.headers = headers
        self.transient = transient
