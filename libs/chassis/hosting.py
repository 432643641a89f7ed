"""A tool host as the bus sees it, the same for every service that hosts tools (design, section 5).

Invariant: calls are taken only while the catalog names this boot, in a fixed order of stopping: pulling, catalog,
answering, running calls. What an effect goes through stands in `effects.py`.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import NamedTuple, Protocol

import msgspec

from libs.bus.fence import EpochFence
from libs.bus.parting import let_go
from libs.bus.ports import Bus, Delivery, Liveness, Message, Outcome
from libs.chassis.effects import (
    DEFECTS,
    Effects,
    Prepared,
    Stopped,
    call_decoder,
    defect,
    encoder,
    failed,
    fitting,
    refused,
    timed,
)
from libs.chassis.execution import Execution, Executions
from libs.chassis.logs import get_logger
from libs.chassis.waiting import first_of
from libs.contracts.clock import Clock
from libs.contracts.errors import UNREADABLE, BusUnavailable, PerdureError
from libs.contracts.streams import ConsumerSpec
from libs.contracts.subjects import catalog_key
from libs.contracts.tools import (
    CancelCalls,
    ControlMessage,
    ControlReply,
    HostCatalog,
    Refusal,
    ToolCall,
    ToolResult,
    ToolSpec,
)

# Effects at once: as many as an executor has slots by default. Beyond that messages wait in the stream, where
# `not_after` still drops them.
EFFECTS_MAX = 64
# How often the runs of running calls are looked at, and the catalog key renewed (it expires after three misses).
WATCH_S = 5.0
CATALOG_TTL_S = 3 * WATCH_S
# A cancel is answered when its calls have ended, or after this: the owner waits little longer.
CANCEL_PATIENCE_S = 1.3
# After SIGTERM running calls may finish for this long, then they are killed; the chassis gives 10 s for everything.
DRAIN_S = 6.0
KILL_S = 3.0


class ToolService(Protocol):
    """What a service puts behind the protocol."""

    async def answer(self, call: ToolCall, stop: asyncio.Event) -> ToolResult:
        """Carry out a READ_ONLY call; one with an effect is refused."""
        ...

    def effect(self, call: ToolCall, /) -> AbstractAsyncContextManager[Prepared]:
        """Prepare a call with an effect, or say its result at once; the context lasts until the effect is over."""
        ...


class Changing(NamedTuple):
    """Tools that come and go while a host lives: `tools` says which there are, `changed` has it written at once."""

    tools: Callable[[], list[ToolSpec]]
    changed: asyncio.Event


class HostSetting(NamedTuple):
    """What a host offers and where its effects come from. With `changing` the catalog's own list of tools is not used."""

    catalog: HostCatalog
    effects: ConsumerSpec
    changing: Changing | None = None


class ToolHost:
    """One host: `control` goes to `register`, `serve` runs until `stop` or until this process is declared dead."""

    def __init__(self, bus: Bus, clock: Clock, service: ToolService) -> None:
        self._bus, self._clock, self._service = bus, clock, service
        self._fence = EpochFence(bus.log, clock)
        self._executions = Executions(EFFECTS_MAX)
        self._effects = Effects(bus, clock, self._fence, self._executions, service.effect)
        self._log = get_logger("hosting")

    async def control(self, message: ControlMessage) -> ControlReply:
        """Answer `<p>.ctl.<boot>`. Idempotent: a second cancel finds nothing to end."""
        if not isinstance(message, CancelCalls):
            return ControlReply(boot=self._executions.boot)
        if message.call_id is None:
            self._fence.close(message.run_id, message.epoch)
        chosen = self._executions.of_run(message.run_id, message.epoch, message.call_id)
        await self._executions.end(chosen, CANCEL_PATIENCE_S)
        self._log.info("calls.cancelled", run_id=message.run_id, ended=len(chosen))
        return ControlReply(boot=self._executions.boot, ended=len(chosen))

    async def serve(
        self, liveness: Liveness, setting: HostSetting, *, stop: asyncio.Event, died: asyncio.Event
    ) -> None:
        """Answer calls until `stop` (drains: running calls end within 9 s) or `died` (kills them at once)."""
        self._executions.boot = liveness.boot
        async with asyncio.TaskGroup() as calls:
            async with self._taking(liveness, setting, calls):
                await first_of(stop, died)
                told_s = self._clock.monotonic()
            if not died.is_set():
                await self._executions.idle(DRAIN_S - (self._clock.monotonic() - told_s))
            await self._executions.end(self._executions.all(), KILL_S)

    @asynccontextmanager
    async def _taking(
        self, liveness: Liveness, setting: HostSetting, calls: asyncio.TaskGroup
    ) -> AsyncGenerator[None]:
        """Takes calls while the context lasts."""

        async def handle(delivery: Delivery) -> Outcome:
            return await self._effects.accept(delivery, setting.catalog, liveness, calls)

        async with self._bus.wire.respond(self._bus.subjects.call_host(liveness.boot), self._answer):
            await self._advertise(setting)
            pulling = calls.create_task(
                self._bus.queue.consume(
                    setting.effects, handle, concurrency=EFFECTS_MAX, ready=self._executions.free_slot
                )
            )
            tasks = [pulling, calls.create_task(self._watch(setting))]
            if setting.changing is not None:
                tasks.append(calls.create_task(self._follow(setting, setting.changing)))
            try:
                yield
            finally:
                for task in tasks:
                    task.cancel()
                deleting = self._bus.bucket("catalog").delete(catalog_key(setting.catalog.boot))
                await let_go("catalog", deleting)

    async def _answer(self, message: Message) -> bytes:
        """Answer one READ_ONLY request. Idempotent by nature; the result is never kept."""
        try:
            call = call_decoder.decode(message.body)
        except UNREADABLE as error:
            said = f"this is not a tool call: {error}"
            nobody = ToolResult(call_id="", attempt=0, ok=False, output=said, refused=Refusal.MALFORMED)
            return encoder.encode(nobody)
        with self._executions.running(call, read_only=True) as execution:
            began_s = self._clock.monotonic()
            try:
                result = await self._answered(call, execution)
                return encoder.encode(fitting(call, timed(result, self._clock.monotonic() - began_s)))
            except TimeoutError:
                result = failed(call, f"TIMEOUT: {call.name} did not answer within {call.timeout_s:g} s")
            except Stopped as stopped:
                result = refused(call, Refusal.STOPPED, stopped.message)
            except BusUnavailable as error:
                result = refused(call, Refusal.HOST_SUSPECT, error.message)
            except DEFECTS as error:
                self._log.exception("call.defect", run_id=call.run_id, call_id=call.call_id, tool=call.name)
                result = defect(call, error)
        return encoder.encode(result)

    async def _answered(self, call: ToolCall, execution: Execution) -> ToolResult:
        refusal = await self._fence.admit(call, fresh=False)
        if refusal is not None:
            return refused(call, refusal)
        async with asyncio.timeout(call.timeout_s):
            return await self._service.answer(call, execution.stop)

    async def _watch(self, setting: HostSetting) -> None:
        """Keep the catalog key, and end the calls of runs that are over.

        Calls of a run that was only taken over go on: its new owner waits for them.
        """
        while True:
            await self._clock.sleep(WATCH_S)
            try:
                await self._advertise(setting)
                for key in self._executions.runs():
                    if await self._fence.is_over(key):
                        over = self._executions.of_run(key.log_id, None, None)
                        self._log.warning("calls.orphaned", run_id=key.log_id, ended=len(over))
                        await self._executions.end(over, KILL_S)
            except PerdureError as error:
                # The next round tries again.
                self._log.warning("watch.failed", error=error.message)

    async def _follow(self, setting: HostSetting, changing: Changing) -> None:
        """Write the catalog whenever it has changed."""
        while True:
            await changing.changed.wait()
            changing.changed.clear()
            try:
                await self._advertise(setting)
            except PerdureError as error:
                # The watch writes it again soon.
                self._log.warning("catalog.not_written", error=error.message)

    async def _advertise(self, setting: HostSetting) -> None:
        catalog = setting.catalog
        if setting.changing is not None:
            catalog = msgspec.structs.replace(catalog, tools=setting.changing.tools())
        await self._bus.bucket("catalog").put(
            catalog_key(catalog.boot), encoder.encode(catalog), ttl_s=CATALOG_TTL_S
        )
