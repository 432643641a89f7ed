"""Stops what hosts run for a run that is to end, when its owner may not be there to do it.

Invariant: only calls up to the epoch are stopped, and only those of runs that the log wants to end. A message that is
lost costs the 5 s after which a host looks at the log by itself; repeating one finds nothing to stop.
"""

import msgspec

from libs.bus.ports import LogKey, Wire
from libs.chassis.logs import get_logger
from libs.contracts.subjects import Subjects
from libs.contracts.tools import CancelCalls
from services.scheduler.replicas import Replicas

_log = get_logger("halting")


class Halting:
    """Tells the hosts."""

    def __init__(self, wire: Wire, subjects: Subjects, replicas: Replicas) -> None:
        self._wire, self._subjects, self._replicas = wire, subjects, replicas

    async def halt(self, run: LogKey, epoch: int) -> None:
        """Tell every living host: what runs where stands in no log (tools without a workspace, verifiers), and one that
        runs nothing for the run has nothing to do. Raises `BusUnavailable`."""
        message = msgspec.json.encode(CancelCalls(run_id=run.log_id, epoch=epoch))
        hosts = self._replicas.hosts()
        for boot in hosts:
            await self._wire.publish(self._subjects.control(boot), message)
        _log.info("run.halted", run_id=run.log_id, epoch=epoch, hosts=len(hosts))
