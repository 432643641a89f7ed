"""The process that launchers are forked from, as the host sees it.

Invariant: it holds nothing: when it is killed, running commands go on and the next one gets another; when the host dies,
it ends by itself.
"""

import asyncio
import os
import socket
import sys
from asyncio.subprocess import Process
from contextlib import ExitStack
from pathlib import Path

from services.toolhost import launcher
from services.toolhost.cgroups import Group
from services.toolhost.launched import Launched

# Isolated, without site packages: what it imports is copied by every fork.
_PROGRAM = """
import sys
sys.path.append(sys.argv[1])
from services.toolhost.launcher import main
main(int(sys.argv[2]))
"""
# Who closes it has seen its commands end; what is left to a launcher then is to end itself.
_LAST_LAUNCHERS_S = 2.0
_ROOT = Path(launcher.__file__).parents[2]


class Launchpad:
    """Starts launchers. Its process begins with the first one, and ends with `close`."""

    def __init__(self) -> None:
        self._process: Process | None = None
        self._channel: socket.socket | None = None
        self._opening = asyncio.Lock()

    async def launch(self, group: Group) -> Launched:
        """A launcher whose command will be in `group`. Raises `OSError` if the system has no room for it."""
        with ExitStack() as handed, ExitStack() as kept:
            (output_r, output_w), (status_r, status_w) = os.pipe(), os.pipe()
            for fd in (output_w, status_w):
                handed.callback(os.close, fd)
            for fd in (output_r, status_r):
                kept.callback(os.close, fd)
                os.set_blocking(fd, False)
            # No pipe: uvloop closes the descriptor of one twice, and by the second time it may be another file's.
            orders, orders_end = socket.socketpair()
            handed.enter_context(orders_end)
            kept.enter_context(orders)
            await self._send(group, [orders_end.fileno(), output_w, status_w])
            loop = asyncio.get_running_loop()
            transport, _ = await loop.create_unix_connection(asyncio.Protocol, sock=orders)
            kept.pop_all()
        return Launched(group, transport, output_r, status_r)

    async def close(self) -> None:
        """End the process, which waits for launchers that are about to end. Those are not touched. May be called twice."""
        # First nobody uses it any more: while its end is waited for, another launch may begin the next one.
        channel, self._channel = self._channel, None
        process, self._process = self._process, None
        if channel is not None:
            channel.close()
        if process is not None:
            try:
                async with asyncio.timeout(_LAST_LAUNCHERS_S):
                    await process.wait()
            except TimeoutError:
                process.kill()
                await process.wait()

    async def _send(self, group: Group, fds: list[int]) -> None:
        message = os.fsencode("\0".join(group.doors))
        try:
            socket.send_fds(await self._opened(), [message], fds)
        except (BrokenPipeError, ConnectionResetError):
            # Somebody killed it.
            await self.close()
            socket.send_fds(await self._opened(), [message], fds)

    async def _opened(self) -> socket.socket:
        async with self._opening:
            if self._channel is None:
                # One message is one launcher, and the end of either side is seen by the other.
                self._channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
                with theirs:
                    self._channel.setblocking(False)
                    self._process = await asyncio.create_subprocess_exec(
                        *(sys.executable, "-I", "-S", "-c", _PROGRAM, str(_ROOT), str(theirs.fileno())),
                        stdin=asyncio.subprocess.DEVNULL,
                        stdout=asyncio.subprocess.DEVNULL,
                        pass_fds=(theirs.fileno(),),
                        env={},
                        start_new_session=True,
                    )
            return self._channel
