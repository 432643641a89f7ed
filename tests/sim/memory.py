"""What a process of the simulation holds in memory: everything that its tasks lead to, and nothing that is shared.

Invariant: counted from the references between objects, so the same history gives the same figure; what the servers keep,
the simulation itself and code are nobody's memory.
"""

from __future__ import annotations

import asyncio
import gc
import sys
import types

from libs.bus.twin.link import Link, Timers
from libs.bus.twin.logs import LogStore
from libs.bus.twin.server import TwinServer
from libs.bus.twin.stores import BlobStore, BucketStore
from libs.bus.twin.timers import TimerStore
from libs.bus.twin.wire import WireStore
from libs.bus.twin.work import StreamStore
from tests.sim.clock import SimClock
from tests.sim.loop import Process, SimLoop, SimTask
from tests.sim.world import World

# The servers and the simulation; `Link` leads to nothing else.
_SHARED = (
    TwinServer,
    LogStore,
    StreamStore,
    BucketStore,
    BlobStore,
    WireStore,
    TimerStore,
    Timers,
    Link,
    World,
    SimLoop,
    SimClock,
    Process,
)
_CODE = (type, types.ModuleType, types.CodeType, types.BuiltinFunctionType, types.MethodDescriptorType)


def held_bytes(world: World, name: str) -> int:
    """Bytes of all objects that the tasks of the process with this name lead to."""
    process = world.machines[name].process
    ends = {id(vars(module)) for module in list(sys.modules.values())}
    ends |= {id(one) for one in vars(world).values()}
    reached: list[object] = [
        task
        for task in asyncio.all_tasks(world.loop)
        if isinstance(task, SimTask) and task.process is process
    ]
    seen = {id(one) for one in reached}
    total = 0
    while reached:
        one = reached.pop()
        total += sys.getsizeof(one)
        for other in _parts(one):
            if id(other) not in seen and id(other) not in ends and not isinstance(other, (*_SHARED, *_CODE)):
                seen.add(id(other))
                reached.append(other)
    return total


def _parts(one: object) -> list[object]:
    if isinstance(one, types.FunctionType):
        # Its module belongs to nobody; what it closes over is held.
        return [one.__closure__, one.__defaults__, one.__kwdefaults__]
    return gc.get_referents(one)
