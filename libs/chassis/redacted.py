"""A host's tools behind redaction: whatever a call gives, its result has no secret before anybody is told.

Invariant: nothing of a result is recorded, journaled or sent that did not pass here; names and digests stay, so that what
was seen can be found again.
"""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import cast

import msgspec

from libs.chassis.effects import Effect, Prepared
from libs.chassis.hosting import ToolService
from libs.contracts.tools import ToolCall, ToolResult
from libs.policy.redaction import Redaction


class Redacted:
    """The service with its results redacted."""

    def __init__(self, service: ToolService, redaction: Redaction) -> None:
        self._service, self._redaction = service, redaction

    async def answer(self, call: ToolCall, stop: asyncio.Event) -> ToolResult:
        return redacted(await self._service.answer(call, stop), self._redaction)

    @asynccontextmanager
    async def effect(self, call: ToolCall) -> AsyncGenerator[Prepared]:
        async with self._service.effect(call) as prepared:
            if isinstance(prepared, ToolResult):
                yield redacted(prepared, self._redaction)
                return

            async def perform(stop: asyncio.Event) -> ToolResult:
                return redacted(await prepared.perform(stop), self._redaction)

            yield Effect(perform, prepared.before, prepared.after)


def redacted(result: ToolResult, redaction: Redaction) -> ToolResult:
    """The result without secrets."""
    metadata = cast(dict[str, object], redaction.value(result.metadata))
    return msgspec.structs.replace(result, output=redaction.text(result.output), metadata=metadata)
