"""Every answer that a test of the gateway gets is held against `/openapi.json`.

Invariant: a status that an operation does not describe, or a body that does not fit, fails the test that met it.
"""

from __future__ import annotations

import re
from functools import cache
from typing import Any

import httpx
import jsonschema

from services.gateway import openapi

# Not operations of the API: the description and its page, and what is nowhere.
_BESIDE = ("/openapi.json", "/docs")


@cache
def _document() -> dict[str, Any]:
    return dict(openapi.document())


@cache
def _paths() -> list[tuple[re.Pattern[str], str]]:
    """Paths as patterns, fixed ones before those with parameters."""
    found: list[tuple[re.Pattern[str], str]] = []
    for path in sorted(_document()["paths"], key=lambda path: path.count("{")):
        inner = re.escape(path).replace(r"\{path\}", ".*")
        found.append((re.compile(re.sub(r"\\\{\w+\\\}", "[^/]+", inner) + r"\Z"), path))
    return found


@cache
def _validator(path: str, method: str, status: str) -> Any:
    described = _document()["paths"][path][method]["responses"].get(status)
    assert described is not None, f"{method.upper()} {path} answers {status}, which is not described"
    schema = described.get("content", {}).get("application/json", {}).get("schema")
    if schema is None:
        return None
    return jsonschema.Draft202012Validator({**schema, "components": _document()["components"]})


async def as_described(response: httpx.Response) -> None:
    """A hook for httpx: the response is one that the API says it gives. Raises `AssertionError`."""
    request = response.request
    path = next((known for pattern, known in _paths() if pattern.match(request.url.path)), None)
    method = "get" if request.method == "HEAD" else request.method.lower()
    if path is None or method not in _document()["paths"][path]:
        assert response.status_code >= 400 or request.url.path in _BESIDE, request.url.path
        return
    validator = _validator(path, method, str(response.status_code))
    if (
        validator is None
        or request.method == "HEAD"
        or "json" not in response.headers.get("Content-Type", "")
    ):
        return
    validator.validate((await _read(response)).json())


async def _read(response: httpx.Response) -> httpx.Response:
    await response.aread()
    return response
