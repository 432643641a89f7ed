"""What the HTTP API takes and gives about webhooks.

Invariant: as in `http.py` and `views.py`; a secret is taken and never given again, but for one that was made up here.
"""

from typing import Annotated, Self
from urllib.parse import urlsplit

from pydantic import AfterValidator, ConfigDict, Field, model_validator

from libs.contracts.bodies import Request
from libs.contracts.views import View
from libs.contracts.webhooks import EVENT_TYPES, Webhook, WebhookState, key_of

URL_CHARS_MAX = 2048
# What a secret has to have so that nobody finds it by trying, and may have.
SECRET_BYTES_MIN, SECRET_CHARS_MAX = 16, 256


def _is_address(url: str) -> str:
    try:
        parts = urlsplit(url)
        usable = parts.port is None or parts.port > 0
    except ValueError as error:
        raise ValueError("is no address; write it as https://host/path") from error
    if not usable or parts.scheme not in ("http", "https") or not parts.hostname or not url.isascii():
        raise ValueError(
            "is no address; write it as https://host/path, percent-encoded where it is not ASCII"
        )
    if parts.username is not None or parts.fragment or any(map(str.isspace, url)):
        raise ValueError("must have no user, no password, no fragment and no spaces")
    return url


def _is_known(kind: str) -> str:
    if kind not in EVENT_TYPES:
        raise ValueError("is no type of event that is stored; the documentation lists them")
    return kind


def _is_long_enough(secret: str) -> str:
    if len(key_of(secret)) < SECRET_BYTES_MIN:
        raise ValueError(f"must stand for at least {SECRET_BYTES_MIN} bytes")
    return secret


class WebhookCreate(Request):
    """The body of `POST /api/webhooks`. Without a `secret` one is made up and given once, in the answer."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "url": "https://hooks.example.com/perdure",
                    "events": ["run.completed", "run.failed", "input.requested"],
                    "secret": "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw",
                }
            ]
        }
    )

    url: Annotated[str, Field(max_length=URL_CHARS_MAX), AfterValidator(_is_address)]
    events: Annotated[
        list[Annotated[str, AfterValidator(_is_known)]], Field(min_length=1, max_length=len(EVENT_TYPES))
    ]
    secret: Annotated[
        str | None,
        Field(
            min_length=SECRET_BYTES_MIN,
            max_length=SECRET_CHARS_MAX,
            description="whsec_ and base64, as Standard Webhooks writes it; any other text stands for its UTF-8 bytes.",
        ),
    ] = None

    @model_validator(mode="after")
    def _secret_is_usable(self) -> Self:
        if self.secret is not None:
            _is_long_enough(self.secret)
        return self


class WebhookView(View):
    """A webhook and how its deliveries go: `attempt` tries of the event that is under way failed, `next_at` is when it is
    tried again; what was `given_up` is with the operators, as a dead letter."""

    webhook_id: str
    url: str
    events: list[str]
    created_at: str
    delivered: int = 0
    given_up: int = 0
    attempt: int = 0
    last_at: str | None = None
    last_status: int | None = None
    problem: str | None = None
    next_at: str | None = None
    # Only in the answer that makes one without a secret.
    secret: str | None = None


class WebhookList(View):
    webhooks: list[WebhookView]
    next_cursor: str | None = None


def webhook_view(webhook: Webhook, state: WebhookState | None, *, secret: str | None = None) -> WebhookView:
    """A webhook as its tenant sees it."""
    told = state or WebhookState()
    return WebhookView(
        webhook_id=webhook.webhook_id,
        url=webhook.url,
        events=webhook.events,
        created_at=webhook.created_at,
        delivered=told.delivered,
        given_up=told.given_up,
        attempt=told.attempt,
        last_at=told.last_at,
        last_status=told.last_status,
        problem=told.problem,
        next_at=told.next_at,
        secret=secret,
    )
