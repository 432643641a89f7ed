"""OpenAPI 3.1 from the table of operations and the models that validate.

Invariant: `libs/contracts/openapi.json` is what this module gives (`python -m services.gateway.openapi` writes it), so
a change of the API shows in a diff.
"""

import json
from collections.abc import Iterable
from http import HTTPStatus
from pathlib import Path

from pydantic import BaseModel
from pydantic.json_schema import JsonSchemaMode, models_json_schema

from libs.chassis.run import VERSION
from libs.contracts.http import is_optional
from libs.contracts.views import ErrorView
from services.gateway.operation import Operation, Parameter
from services.gateway.operations import OPERATIONS

PUBLISHED = Path(__file__).resolve().parents[2] / "libs" / "contracts" / "openapi.json"

_REFERENCE = "#/components/schemas/{model}"
# One server-sent event, as readers of the stream get it.
_FRAME: dict[str, object] = {
    "type": "object",
    "properties": {
        "event": {"type": "string", "description": "The type of the event."},
        "id": {"type": "string", "description": "Its sequence; transient events have none."},
        "data": {
            "type": "string",
            "contentMediaType": "application/json",
            "contentSchema": {"$ref": _REFERENCE.format(model="EventView")},
        },
    },
    "required": ["event", "data"],
}
_STREAM = (
    "Each `data:` is one event as JSON, `event:` its type and `id:` its sequence. The stream ends after a terminal event "
    "and when the run waits for a person; a 204 says that nothing is left."
)


def document() -> dict[str, object]:
    """The whole description."""
    paths: dict[str, dict[str, object]] = {}
    for operation in OPERATIONS:
        paths.setdefault(operation.path, {})[operation.method.lower()] = _described(operation)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Perdure", "version": VERSION, "description": "Durable agent runs over one log."},
        "servers": [{"url": "/"}],
        "paths": paths,
        "components": {
            "schemas": _schemas(),
            "securitySchemes": {"bearer": {"type": "http", "scheme": "bearer"}},
        },
    }


def text() -> str:
    return json.dumps(document(), indent=1, ensure_ascii=False) + "\n"


def _described(operation: Operation) -> dict[str, object]:
    described: dict[str, object] = {
        "operationId": operation.name,
        "summary": operation.summary,
        "responses": _responses(operation),
    }
    if operation.parameters:
        described["parameters"] = [_parameter(parameter) for parameter in operation.parameters]
    if operation.takes is not None:
        described["requestBody"] = {
            "required": not is_optional(operation.takes),
            "content": _json(operation.takes),
        }
    # Without keys the API is open; with them everything but health needs one.
    described["security"] = [{}] if operation.audience == "everybody" else [{}, {"bearer": []}]
    return described


def _responses(operation: Operation) -> dict[str, object]:
    responses: dict[str, object] = {}
    for status in operation.success:
        response: dict[str, object] = {"description": HTTPStatus(status).phrase, "headers": _REQUEST_ID}
        if operation.gives is not None and status != HTTPStatus.NOT_MODIFIED:
            response["content"] = _json(operation.gives)
        elif status == HTTPStatus.OK and operation.media is not None:
            response["description"] = _STREAM if operation.media == "text/event-stream" else "The bytes."
            schema = _FRAME if operation.media == "text/event-stream" else {"type": "string"}
            response["content"] = {operation.media: {"schema": schema}}
        responses[str(status)] = response
    # Tenants' requests are counted where they have a quota, also while the bus is away.
    counted = (429, 503) if operation.audience in ("tenants", "both") else ()
    denied = () if operation.audience == "everybody" else (401,)
    # 405 answers every method that the path does not have.
    for status in sorted({*denied, *counted, *operation.failures, 405, 500}):
        responses[str(status)] = {
            "description": HTTPStatus(status).phrase,
            "headers": _REQUEST_ID | (_QUOTAS if status == HTTPStatus.TOO_MANY_REQUESTS else {}),
            "content": _json(ErrorView),
        }
    return responses


def _parameter(parameter: Parameter) -> dict[str, object]:
    described: dict[str, object] = {
        "name": parameter.name,
        "in": parameter.place,
        "required": parameter.required,
        "description": parameter.description,
        "schema": parameter.schema,
    }
    if parameter.schema.get("type") == "array":
        described |= {"style": "form", "explode": False}
    return described


def _json(model: type[BaseModel]) -> dict[str, object]:
    return {"application/json": {"schema": {"$ref": _REFERENCE.format(model=model.__name__)}}}


def _schemas() -> dict[str, object]:
    taken = _models(operation.takes for operation in OPERATIONS)
    given = [ErrorView, *_models(operation.gives for operation in OPERATIONS)]
    models = [*_in_mode("validation", taken), *_in_mode("serialization", given)]
    _, definitions = models_json_schema(models, ref_template=_REFERENCE)
    return dict(sorted(definitions["$defs"].items()))


def _in_mode(
    mode: JsonSchemaMode, models: list[type[BaseModel]]
) -> list[tuple[type[BaseModel], JsonSchemaMode]]:
    return [(model, mode) for model in models]


def _models(candidates: Iterable[type[BaseModel] | None]) -> list[type[BaseModel]]:
    return list(dict.fromkeys(model for model in candidates if model is not None))


_REQUEST_ID: dict[str, object] = {
    "X-Request-ID": {
        "description": "The request's id, as sent or as made up.",
        "schema": {"type": "string"},
    }
}
_QUOTAS: dict[str, object] = {
    "Retry-After": {
        "description": "Seconds until it may go on.",
        "schema": {"type": "integer", "minimum": 1},
    },
    "RateLimit-Policy": {
        "description": 'The tenant\'s quotas: `"requests";q=60;w=60` are 60 in 60 s, `"runs";q=20` are 20 at once.',
        "schema": {"type": "string"},
    },
    "RateLimit": {
        "description": 'What is left of them: `"requests";r=0;t=12` says none, and more in 12 s. Every answer to a tenant '
        "with a quota has it.",
        "schema": {"type": "string"},
    },
}


if __name__ == "__main__":
    PUBLISHED.write_text(text(), encoding="utf-8")
