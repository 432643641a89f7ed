"""The operations of webhooks, as `operations.py` lists those of runs."""

from libs.contracts import webhookhttp
from services.gateway.operation import KEY, Operation, Parameter

_WEBHOOK = Parameter("webhook_id", "path", {"type": "string"}, "The webhook's id.", required=True)

WEBHOOK_OPERATIONS: tuple[Operation, ...] = (
    Operation(
        "create_webhook",
        "POST",
        "/api/webhooks",
        "Have events of these types sent to an address, signed as Standard Webhooks says, in order, again until it takes "
        "them.",
        webhookhttp.WebhookView,
        success=(201, 200),
        takes=webhookhttp.WebhookCreate,
        parameters=(KEY,),
        failures=(404, 409, 413, 415, 422, 503),
    ),
    Operation(
        "list_webhooks",
        "GET",
        "/api/webhooks",
        "All webhooks of the tenant with how their deliveries go, newest first.",
        webhookhttp.WebhookList,
        failures=(503,),
    ),
    Operation(
        "delete_webhook",
        "DELETE",
        "/api/webhooks/{webhook_id}",
        "Nothing more is sent, what waits included.",
        None,
        success=(204,),
        parameters=(_WEBHOOK,),
        failures=(404, 503),
    ),
)
