"""Webhooks: who wants to hear of which events, what is sent, and how it is signed (standardwebhooks.com).

Invariant: pure; the same event has the same id and the same bytes at every try, so a receiver that has seen the id has
seen the event.
"""

import base64
import binascii
import hashlib
import hmac

import msgspec

from libs.contracts.envelope import event_kinds
from libs.contracts.events import RunDeleted
from libs.contracts.tasks import Limits

# Secrets are base64 behind this, or plain text.
SECRET_PREFIX = "whsec_"
ID, TIMESTAMP, SIGNATURE = "webhook-id", "webhook-timestamp", "webhook-signature"

# What can be asked for: every kind of event that is stored and shown.
EVENT_TYPES = frozenset(event_kinds()) - {RunDeleted.type}
LIFE_TYPES = frozenset(name for name, kind in event_kinds().items() if kind.life)
# As streams show events: longer strings are cut, the whole event is at `GET /api/runs/{id}/events/{sequence}`.
CHARS_MAX = Limits().max_event_payload_chars


class Webhook(msgspec.Struct, frozen=True, kw_only=True):
    """What a tenant asked for: the value of `hook.<tenant>.<id>` in the bucket `webhooks`. `body_hash` is that of the
    request that made it."""

    webhook_id: str
    tenant: str
    url: str
    events: list[str]
    secret: str
    created_at: str
    body_hash: str

    @property
    def everything(self) -> bool:
        """Whether it asks for events that only a reader of all records sees."""
        return not LIFE_TYPES.issuperset(self.events)


class WebhookState(msgspec.Struct, frozen=True, kw_only=True):
    """How deliveries went: the value of `state.<id>`. `attempt` counts the tries of the one that is under way (0: none
    failed), `next_at` is when it is tried again, `given_up` how many never arrived."""

    delivered: int = 0
    given_up: int = 0
    attempt: int = 0
    last_at: str | None = None
    last_status: int | None = None
    problem: str | None = None
    next_at: str | None = None


class WebhookDelivery(msgspec.Struct, frozen=True, kw_only=True):
    """A message of `<p>.hook.<id>`: one event for one webhook; `body` is what is sent, byte for byte."""

    webhook_id: str
    tenant: str
    run_id: str
    sequence: int
    body: str

    @property
    def message_id(self) -> str:
        """What receivers recognise the event by."""
        return f"msg_{self.webhook_id}_{self.run_id}_{self.sequence}"


class _Message(msgspec.Struct, frozen=True, kw_only=True):
    type: str
    timestamp: str
    data: msgspec.Raw


def body_of(kind: str, at: str, event: bytes) -> str:
    """What is sent of an event: its type and time, and the event as streams show it."""
    return msgspec.json.encode(_Message(type=kind, timestamp=at, data=msgspec.Raw(event))).decode()


def key_of(secret: str) -> bytes:
    """The bytes that a secret stands for. Raises `ValueError` when it begins as one and is none."""
    if not secret.startswith(SECRET_PREFIX):
        return secret.encode()
    try:
        return base64.b64decode(secret.removeprefix(SECRET_PREFIX), validate=True)
    except binascii.Error as error:
        raise ValueError(f"must be base64 behind {SECRET_PREFIX}") from error


def signed_headers(secret: str, message_id: str, timestamp_s: int, body: bytes) -> dict[str, str]:
    """The headers that prove a message: HMAC-SHA256 over its id, the time of this try and its body."""
    signed = b"%b.%d.%b" % (message_id.encode(), timestamp_s, body)
    digest = hmac.new(key_of(secret), signed, hashlib.sha256).digest()
    return {
        ID: message_id,
        TIMESTAMP: str(timestamp_s),
        SIGNATURE: f"v1,{base64.b64encode(digest).decode()}",
    }
