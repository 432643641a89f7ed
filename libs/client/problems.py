"""Failures of the gateway as exceptions: the envelope becomes the class of the same code.

Invariant: a caller of the client sees only `PerdureError` and its kind, never an exception of the HTTP library.
"""

from collections.abc import Iterator

from pydantic import ValidationError

from libs.contracts.errors import InternalError, PerdureError, RequestError, Unavailable
from libs.contracts.views import ErrorView


class GatewayUnreachable(Unavailable):
    """Nothing answers at the gateway's address, or not in time."""

    code = "GATEWAY_UNREACHABLE"


def problem(status: int, body: bytes, retry_after: str | None) -> PerdureError:
    """The exception that an answer with `status` >= 400 stands for."""
    wait_s = int(retry_after) if retry_after is not None and retry_after.isdigit() else None
    try:
        envelope = ErrorView.model_validate_json(body)
    except ValidationError:
        kind = RequestError if status < 500 else Unavailable
        return kind(
            f"HTTP {status} from something that is not a Perdure gateway; check PERDURE_URL",
            retry_after_s=wait_s,
        )
    details = [{"field": item.field, "message": item.message} for item in envelope.details or []]
    message = envelope.message
    if status >= 500:
        message = f"{message} (request {envelope.request_id})"
    kind = _KINDS.get(envelope.error_code)
    if kind is None:
        kind = RequestError if status < 500 else Unavailable
    return kind(message, details=details or None, retry_after_s=wait_s)


def _tree(root: type[PerdureError]) -> Iterator[type[PerdureError]]:
    for kind in root.__subclasses__():
        yield kind
        yield from _tree(kind)


# The first class with a code speaks for it: `NobodyThere` shares the code of `BusUnavailable`, its parent.
_KINDS: dict[str, type[PerdureError]] = {}
for _kind in _tree(PerdureError):
    if "code" in _kind.__dict__ and _kind.__module__ == PerdureError.__module__:
        _KINDS.setdefault(_kind.code, _kind)
_KINDS[InternalError.code] = InternalError
