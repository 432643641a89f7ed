"""Git as a process: every command of the hidden repositories is run here.

Invariant: nothing of the user's own git configuration, hooks, filters or attributes is read, and no command outlives its
caller or says more than is asked of it.
"""

import asyncio
import os
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path

from services.toolhost.errors import RepositoryFault

_CONFIGURATION = (
    "core.bare=false", "core.hooksPath=/dev/null", "core.attributesFile=/dev/null", "core.excludesFile=/dev/null",
    "core.quotePath=false", "core.autocrlf=false", "core.safecrlf=false", "core.fileMode=true", "core.symlinks=true",
    "core.protectNTFS=false", "core.protectHFS=false", "core.precomposeUnicode=false", "core.fsmonitor=false", "core.untrackedCache=false", "core.pager=cat",
    "core.fsync=committed,reference", "core.fsyncMethod=batch", "gc.auto=0", "maintenance.auto=false",
    "safe.directory=*", "advice.addEmbeddedRepo=false", "diff.renames=false", "submodule.recurse=false",
)  # fmt: skip
# A git that takes longer hangs on the file system; a snapshot of 200,000 files takes a minute or two.
_GIT_PATIENCE_S = 300.0
# Lists of paths and objects are ours to bound: 200,000 paths of 4 KiB would be refused by the walk before.
ANSWER_BYTES_MAX = 256 << 20


class Git:
    """Runs git on one repository and worktree; `index` is another one than the repository's own."""

    def __init__(
        self, *, git_dir: Path, worktree: Path, program_path: str, index: Path | None = None
    ) -> None:
        self._git_dir, self._worktree = git_dir, worktree
        self._program_path = program_path
        self.index = index or git_dir / "index"

    async def run(
        self,
        *arguments: str,
        data: bytes = b"",
        extra: Mapping[str, str] | None = None,
        directory: Path | None = None,
        bytes_max: int = ANSWER_BYTES_MAX,
        cut: bool = False,
        accepted: Sequence[int] = (0,),
        into: Path | None = None,
    ) -> bytes:
        """What git answers; with `into`, that goes into a file. More than `bytes_max` is an error, or just cut off.
        Raises `RepositoryFault`."""
        settings = [item for setting in _CONFIGURATION for item in ("-c", setting)]
        try:
            process = await asyncio.create_subprocess_exec(
                *("git", *settings, *arguments),
                cwd=directory or self._worktree,
                env=self._environment() | dict(extra or {}),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                start_new_session=True,
            )
        except FileNotFoundError as error:
            raise RepositoryFault(f"git or the workspace is missing: {error.filename}") from None
        try:
            async with asyncio.timeout(_GIT_PATIENCE_S), asyncio.TaskGroup() as group:
                group.create_task(_feed(process, data))
                answering = group.create_task(_read(process, process.stdout, bytes_max, into))
                complaining = group.create_task(_read(process, process.stderr, ANSWER_BYTES_MAX, None))
            code = await process.wait()
        except TimeoutError:
            raise RepositoryFault(
                f"git {arguments[0]} did not finish within {_GIT_PATIENCE_S:.0f} s"
            ) from None
        finally:
            if process.returncode is None:
                with suppress(ProcessLookupError):
                    process.kill()
                await process.wait()
        answer, size = answering.result()
        if size > bytes_max:
            if cut:
                return answer
            raise RepositoryFault(f"git {arguments[0]} answered with more than {bytes_max} bytes")
        if code not in accepted:
            said = complaining.result()[0].decode("utf-8", "replace").strip()[-1000:]
            raise RepositoryFault(f"git {arguments[0]} failed: {said or f'exit code {code}'}")
        return answer

    def _environment(self) -> dict[str, str]:
        return {
            "PATH": self._program_path,
            "HOME": str(self._git_dir),
            "LANG": "C.UTF-8",
            "GIT_DIR": str(self._git_dir),
            "GIT_WORK_TREE": str(self._worktree),
            "GIT_INDEX_FILE": str(self.index),
            "GIT_CONFIG_NOSYSTEM": "1",
            "GIT_CONFIG_GLOBAL": os.devnull,
            "GIT_ATTR_NOSYSTEM": "1",
            "GIT_TERMINAL_PROMPT": "0",
            "GIT_LITERAL_PATHSPECS": "1",
            "GIT_NO_REPLACE_OBJECTS": "1",
            "GIT_OPTIONAL_LOCKS": "0",
            "GIT_AUTHOR_NAME": "Perdure",
            "GIT_AUTHOR_EMAIL": "perdure@localhost",
            "GIT_COMMITTER_NAME": "Perdure",
            "GIT_COMMITTER_EMAIL": "perdure@localhost",
        }


async def _feed(process: asyncio.subprocess.Process, data: bytes) -> None:
    assert process.stdin is not None
    # A git that has ended early (its complaint says why) takes no more.
    with suppress(BrokenPipeError, ConnectionResetError):
        if data and not process.stdin.is_closing():
            process.stdin.write(data)
            await process.stdin.drain()
    process.stdin.close()


async def _read(
    process: asyncio.subprocess.Process,
    stream: asyncio.StreamReader | None,
    bytes_max: int,
    into: Path | None,
) -> tuple[bytes, int]:
    """All of it, or what went into the file, and how much. A process that says more than `bytes_max` is killed, and what
    comes back is longer than that."""
    assert stream is not None
    data, size = bytearray(), 0
    with ExitStack() as opened:
        file = opened.enter_context(await asyncio.to_thread(into.open, "wb")) if into is not None else None
        while block := await stream.read(1 << 18):
            if size > bytes_max:
                continue
            size += len(block)
            if file is not None:
                await asyncio.to_thread(file.write, block)
            else:
                data += block
            if size > bytes_max:
                # It may have ended already: what it said lay in the pipe.
                with suppress(ProcessLookupError):
                    process.kill()
    return bytes(data), size
