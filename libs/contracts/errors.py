"""The one exception tree of Perdure, and how each class meets a client.

Invariant: `code` is permanent; what a caller may do about an error is in its message.

    PerdureError                      code, HTTP status, whether the same call may succeed later
    ├── RequestError                  the caller's: nothing was changed
    │   ├── NotHttp                   BAD_REQUEST 400: what no HTTP server could read
    │   ├── RequestTimeout            REQUEST_TIMEOUT 408: it did not come whole in time
    │   ├── ValidationFailed          VALIDATION_ERROR 422 (details: one entry a field)
    │   ├── Unauthorized              UNAUTHORIZED 401
    │   ├── NotFound                  NOT_FOUND 404
    │   ├── MethodNotAllowed          METHOD_NOT_ALLOWED 405
    │   ├── InvalidState              INVALID_STATE 409
    │   ├── IdempotencyConflict       IDEMPOTENCY_CONFLICT 409
    │   ├── RunDeleted                RUN_DELETED 410
    │   ├── PayloadTooLarge           PAYLOAD_TOO_LARGE 413
    │   ├── UnsupportedMediaType      UNSUPPORTED_MEDIA_TYPE 415
    │   ├── PatchUnreadable           PATCH_UNREADABLE 422: the text of a patch, in a tool's result only
    │   ├── QuotaExceeded             QUOTA_EXCEEDED 429
    │   └── InvalidCursor             INVALID_CURSOR 400
    ├── Unavailable                   ours, for now: nothing was lost, a retry helps
    │   ├── ConfigurationError        CONFIGURATION_ERROR 503 (a retry helps only after somebody configures)
    │   ├── BusUnavailable            BUS_UNAVAILABLE 503
    │   │   └── NobodyThere           the same, and certain that nobody listens on the subject
    │   └── StorageFull               STORAGE_FULL 503
    ├── LogError                      between a writer and a log
    │   ├── AppendConflict            somebody else wrote first: fold what is new and decide again
    │   ├── LeaseLost                 the log names another owner, or the process is declared dead: stop
    │   ├── IllegalTransition         an event that the fold's table does not allow: a defect, never retried
    │   └── UnreadableRecord          malformed: park, do not guess
    │       └── NewerRecord           the same, and well-formed: written by a later version; upgrade the reader
    └── InternalError                 INTERNAL_ERROR 500
"""

from typing import ClassVar

import msgspec

# What decoding the bytes of somebody else raises: also of bytes that are nested deeper than the decoder goes.
UNREADABLE: tuple[type[Exception], ...] = (msgspec.MsgspecError, RecursionError)


class PerdureError(Exception):
    """Root of the tree. `message` says what happened and what to do next; `details` are per field."""

    code: ClassVar[str] = "INTERNAL_ERROR"
    status: ClassVar[int] = 500
    retryable: ClassVar[bool] = False

    def __init__(
        self,
        message: str,
        *,
        details: list[dict[str, str]] | None = None,
        retry_after_s: int | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.details = details
        self.retry_after_s = retry_after_s


class RequestError(PerdureError):
    """The caller's request cannot be carried out as it is; nothing was changed."""

    status = 400


class NotHttp(RequestError):
    code = "BAD_REQUEST"


class RequestTimeout(RequestError):
    code, status, retryable = "REQUEST_TIMEOUT", 408, True


class ValidationFailed(RequestError):
    code, status = "VALIDATION_ERROR", 422


class Unauthorized(RequestError):
    code, status = "UNAUTHORIZED", 401


class NotFound(RequestError):
    code, status = "NOT_FOUND", 404


class MethodNotAllowed(RequestError):
    code, status = "METHOD_NOT_ALLOWED", 405


class InvalidState(RequestError):
    code, status = "INVALID_STATE", 409


class IdempotencyConflict(RequestError):
    code, status = "IDEMPOTENCY_CONFLICT", 409


class RunDeleted(RequestError):
    code, status = "RUN_DELETED", 410


class PayloadTooLarge(RequestError):
    code, status = "PAYLOAD_TOO_LARGE", 413


class UnsupportedMediaType(RequestError):
    code, status = "UNSUPPORTED_MEDIA_TYPE", 415


class PatchUnreadable(RequestError):
    code, status = "PATCH_UNREADABLE", 422


class QuotaExceeded(RequestError):
    code, status, retryable = "QUOTA_EXCEEDED", 429, True


class InvalidCursor(RequestError):
    code, status = "INVALID_CURSOR", 400


class Unavailable(PerdureError):
    """Perdure cannot do this now; nothing was lost."""

    status, retryable = 503, True


class ConfigurationError(Unavailable):
    code, retryable = "CONFIGURATION_ERROR", False


class BusUnavailable(Unavailable):
    code = "BUS_UNAVAILABLE"


class NobodyThere(BusUnavailable):
    """No process listens on the subject that was asked: the request reached nobody."""


class StorageFull(Unavailable):
    code = "STORAGE_FULL"


class LogError(PerdureError):
    """Something between a writer and a log."""


class AppendConflict(LogError):
    """The log went on behind the writer's back; `last` is the stream sequence of its newest record (0: none)."""

    code, retryable = "APPEND_CONFLICT", True

    def __init__(self, message: str, *, last: int) -> None:
        super().__init__(message)
        self.last = last


class LeaseLost(LogError):
    """The run has another owner now, or this process is dead in the eyes of the others."""

    code = "LEASE_LOST"


class IllegalTransition(LogError):
    code = "ILLEGAL_TRANSITION"


class UnreadableRecord(LogError):
    """A record that this reader cannot take in; `log_id` names its log where that is known."""

    code = "UNREADABLE_RECORD"

    def __init__(self, message: str, *, log_id: str = "") -> None:
        super().__init__(message)
        self.log_id = log_id


class NewerRecord(UnreadableRecord):
    """Of a schema or a kind of event that a later version brought."""


class InternalError(PerdureError):
    code = "INTERNAL_ERROR"
