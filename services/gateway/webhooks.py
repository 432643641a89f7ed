"""Webhooks over HTTP: registered, listed with how their deliveries go, and removed.

Invariant: a webhook hears of everything that is stored after the answer to its registration; its secret is never shown
again.
"""

import base64
from urllib.parse import urlsplit

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from libs.bus.ports import Bucket, Queue
from libs.contracts.clock import Clock, rfc3339
from libs.contracts.errors import (
    AppendConflict,
    IdempotencyConflict,
    InvalidState,
    NotFound,
    ValidationFailed,
)
from libs.contracts.http import body_hash, idempotency_key
from libs.contracts.ids import derived_webhook_id, is_webhook_id, random_webhook_id
from libs.contracts.streams import matching_consumer
from libs.contracts.subjects import HOOKS, Subjects, webhook_key, webhook_state_key
from libs.contracts.webhookhttp import WebhookCreate, WebhookList, webhook_view
from libs.contracts.webhooks import SECRET_PREFIX, Webhook, WebhookState
from libs.policy.outbound import Outbound, literal
from services.gateway import edge

# Each is a consumer on the server and a queue of its own; a tenant that needs more wants one receiver that passes on.
WEBHOOKS_MAX = 20
SECRET_BYTES = 32


class WebhooksApi:
    """Create, list and delete."""

    def __init__(
        self,
        bucket: Bucket,
        queue: Queue,
        subjects: Subjects,
        outbound: Outbound,
        clock: Clock,
        *,
        shards: int,
    ) -> None:
        self._bucket, self._queue, self._subjects = bucket, queue, subjects
        self._outbound, self._clock, self._shards = outbound, clock, shards

    async def create(self, request: Request, tenant: str) -> Response:
        key = idempotency_key(request.headers.get("idempotency-key"))
        body = await edge.body_of(request, WebhookCreate)
        self._require_possible(body.url)
        webhook_id = derived_webhook_id(tenant, key) if key is not None else random_webhook_id(self._clock)
        there = await self._find(tenant, webhook_id) if key is not None else None
        if there is not None:
            return _made(there, body_hash(body))
        mine = await self._bucket.entries(f"{HOOKS}{tenant}.")
        if len(mine) >= WEBHOOKS_MAX:
            raise InvalidState(f"tenant {tenant} has {WEBHOOKS_MAX} webhooks; delete one first")
        made_up = None if body.secret is not None else self._secret()
        webhook = Webhook(
            webhook_id=webhook_id,
            tenant=tenant,
            url=body.url,
            events=sorted(set(body.events)),
            secret=body.secret or made_up or "",
            created_at=rfc3339(self._clock.now()),
            body_hash=body_hash(body),
        )
        for shard in range(self._shards):
            await self._queue.prepare(matching_consumer(self._subjects, shard, everything=webhook.everything))
        try:
            await self._bucket.create(webhook_key(tenant, webhook_id), msgspec.json.encode(webhook))
        except AppendConflict:
            there = await self._find(tenant, webhook_id)
            if there is None:
                raise NotFound("this webhook was deleted; use a new Idempotency-Key") from None
            return _made(there, webhook.body_hash)
        location = {"Location": f"/api/webhooks/{webhook_id}"}
        return edge.answer(webhook_view(webhook, None, secret=made_up), status=201, headers=location)

    async def find(self, _request: Request, tenant: str) -> Response:
        entries = await self._bucket.entries(f"{HOOKS}{tenant}.")
        webhooks = [msgspec.json.decode(entry.value, type=Webhook) for entry in entries]
        webhooks.sort(key=lambda one: (one.created_at, one.webhook_id), reverse=True)
        shown = [webhook_view(one, await self._state(one.webhook_id)) for one in webhooks]
        return edge.answer(WebhookList(webhooks=shown))

    async def delete(self, request: Request, tenant: str) -> Response:
        webhook_id = str(request.path_params["webhook_id"])
        if not is_webhook_id(webhook_id) or await self._find(tenant, webhook_id) is None:
            raise NotFound(f"there is no webhook {webhook_id[:80]!r}")
        await self._bucket.delete(webhook_key(tenant, webhook_id))
        await self._bucket.delete(webhook_state_key(webhook_id))
        return Response(status_code=204)

    async def _find(self, tenant: str, webhook_id: str) -> Webhook | None:
        entry = await self._bucket.get(webhook_key(tenant, webhook_id))
        return msgspec.json.decode(entry.value, type=Webhook) if entry is not None else None

    async def _state(self, webhook_id: str) -> WebhookState | None:
        entry = await self._bucket.get(webhook_state_key(webhook_id))
        return msgspec.json.decode(entry.value, type=WebhookState) if entry is not None else None

    def _require_possible(self, url: str) -> None:
        """Raises `ValidationFailed` for what will never be sent to. Names are judged when they are resolved."""
        host = urlsplit(url).hostname or ""
        address = literal(host)
        inside = host.lower().rstrip(".") == "localhost" and "localhost" not in self._outbound.hosts
        if inside or (address is not None and not self._outbound.allows(host, address)):
            problem = "is no public address; operators allow others with PERDURE_WEBHOOK_ALLOW"
            raise ValidationFailed(f"url {problem}", details=[{"field": "url", "message": problem}])

    def _secret(self) -> str:
        return SECRET_PREFIX + base64.b64encode(self._clock.entropy(SECRET_BYTES)).decode()


def _made(webhook: Webhook, digest: str) -> Response:
    """The answer to a client's own retry; a secret that was made up is given once."""
    if webhook.body_hash != digest:
        raise IdempotencyConflict(
            "this Idempotency-Key was used with another body; use a new key for a new webhook"
        )
    return edge.answer(webhook_view(webhook, None), status=200)
