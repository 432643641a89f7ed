"""The calls that run in this process: who they are, how they are told to stop, when they have ended.

Invariant: a call is in the registry from before its checks until nothing of it runs; whoever ends calls sets their
`stop` and waits, nobody is torn down half way.
"""

import asyncio
from collections.abc import Generator, Iterable
from contextlib import contextmanager

from libs.bus.journal import key_of
from libs.bus.ports import LogKey
from libs.contracts.tools import ToolCall


class Execution:
    """One running call."""

    def __init__(self, call: ToolCall, *, read_only: bool) -> None:
        self.call = call
        self.read_only = read_only
        # False once the run's tail was read too long ago to start by it.
        self.admitted = True
        self.stop = asyncio.Event()
        self.ended = asyncio.Event()


class Executions:
    """All running calls of a host. `boot` is set once the process has one."""

    def __init__(self, effects_max: int) -> None:
        self.boot = ""
        self._effects_max = effects_max
        # In the order of their beginning: a set's order would differ from one process to the next.
        self._running: dict[Execution, None] = {}
        self._effects: dict[str, Execution] = {}

    @contextmanager
    def running(self, call: ToolCall, *, read_only: bool) -> Generator[Execution]:
        """Registers the call while the context lasts."""
        execution = Execution(call, read_only=read_only)
        self._running[execution] = None
        if not read_only:
            self._effects[key_of(call)] = execution
        try:
            yield execution
        finally:
            self._running.pop(execution, None)
            if not read_only:
                del self._effects[key_of(call)]
            execution.ended.set()

    def holds(self, key: str) -> bool:
        """Whether an effect with this journal key is in the works here."""
        return key in self._effects

    def all(self) -> list[Execution]:
        return list(self._running)

    def of_run(self, run_id: str, epoch: int | None, call_id: str | None) -> list[Execution]:
        """The run's calls at an epoch up to `epoch` (None: any), or only `call_id`."""
        return [
            execution
            for execution in self._running
            if execution.call.run_id == run_id
            and (epoch is None or execution.call.epoch <= epoch)
            and call_id in (None, execution.call.call_id)
        ]

    def runs(self) -> set[LogKey]:
        """The runs with calls running."""
        return {LogKey(execution.call.tenant, execution.call.run_id) for execution in self._running}

    async def free_slot(self) -> None:
        """Waits until another effect may be pulled."""
        while len(self._effects) >= self._effects_max:
            await _any_ended(self._effects.values())

    async def idle(self, timeout_s: float) -> None:
        """Waits until nothing runs, at most `timeout_s`."""
        await _all_ended(self.all(), timeout_s)

    async def end(self, executions: Iterable[Execution], timeout_s: float) -> None:
        """Tells the calls to stop and waits until they have, at most `timeout_s`."""
        chosen = list(executions)
        for execution in chosen:
            execution.stop.set()
        await _all_ended(chosen, timeout_s)


async def _all_ended(executions: list[Execution], timeout_s: float) -> None:
    try:
        async with asyncio.timeout(timeout_s):
            for execution in executions:
                await execution.ended.wait()
    except TimeoutError:
        return


async def _any_ended(executions: Iterable[Execution]) -> None:
    waiters = [asyncio.create_task(execution.ended.wait()) for execution in executions]
    try:
        await asyncio.wait(waiters, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for waiter in waiters:
            waiter.cancel()
