"""The shapes of all answers, as the published description has them; real ones are held against it wherever they are asked for."""

from __future__ import annotations

import json
from typing import Any

from tests.tidy.source import ROOT

API: dict[str, Any] = json.loads((ROOT / "libs/contracts/openapi.json").read_text(encoding="utf-8"))
ENVELOPE = {"$ref": "#/components/schemas/ErrorView"}


def test_no_answer_is_a_bare_list_and_every_failure_is_the_one_envelope() -> None:
    seen = 0
    for path, operations in API["paths"].items():
        for method, operation in operations.items():
            for status, answer in operation["responses"].items():
                shape = answer.get("content", {}).get("application/json", {}).get("schema")
                if int(status) >= 400:
                    assert shape == ENVELOPE, (method, path, status)
                elif shape is not None:
                    assert resolved(shape)["type"] == "object", (method, path, status)
                    seen += 1
    assert seen > 40
    assert set(API["components"]["schemas"]["ErrorView"]["required"]) == {
        "error_code",
        "message",
        "request_id",
    }


def resolved(shape: dict[str, Any]) -> dict[str, Any]:
    return API["components"]["schemas"][shape["$ref"].rpartition("/")[2]] if "$ref" in shape else shape
