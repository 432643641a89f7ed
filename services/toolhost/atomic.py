"""Replaces a file in an open directory as one step.

Invariant: whoever opens the name sees the old bytes or the new ones, whole; after a crash too, because the new file
and then its directory are synced. A failure leaves the old file and no other trace.
"""

import errno
import itertools
import os
import stat
from contextlib import suppress

from services.toolhost.beneath import everything

# Files that carry it are half of a replacement: walks and snapshots leave them out.
TEMPORARY_PREFIX = ".perdure-tmp-"
_NO_ANONYMOUS_FILES = frozenset({errno.EOPNOTSUPP, errno.EISDIR, errno.ENOENT, errno.EINVAL})


class AtomicWriter:
    """Makes the temporary files of one workspace. Thread-safe."""

    def __init__(self) -> None:
        self._numbers = itertools.count()

    def replace(
        self, parent_fd: int, name: str, data: bytes, *, existing: os.stat_result | None, mode: int | None
    ) -> None:
        """Puts `data` under `name`. Owner, extended attributes and permission bits are those of `existing` (0644
        without one), unless `mode` is given. Raises `OSError`."""
        fd, temporary = self._create(parent_fd)
        try:
            _write_all(fd, data)
            if existing is not None:
                _copy_identity(name, parent_fd, existing, fd)
            kept = 0o644 if existing is None else stat.S_IMODE(existing.st_mode) & 0o777
            os.fchmod(fd, kept if mode is None else mode)
            os.fsync(fd)
            if os.fstat(fd).st_nlink == 0:
                temporary = self._link(fd, parent_fd)
            os.rename(temporary, name, src_dir_fd=parent_fd, dst_dir_fd=parent_fd)
        except OSError:
            with suppress(OSError):
                os.unlink(temporary, dir_fd=parent_fd)
            raise
        finally:
            os.close(fd)
        os.fsync(parent_fd)

    def _create(self, parent_fd: int) -> tuple[int, str]:
        """A new file in the directory, without a name if the file system can: then a crash leaves nothing behind."""
        try:
            return os.open(".", os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600, dir_fd=parent_fd), ""
        except OSError as error:
            if error.errno not in _NO_ANONYMOUS_FILES:
                raise
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        while True:
            name = self._next_name()
            with suppress(FileExistsError):
                return os.open(name, flags, 0o600, dir_fd=parent_fd), name

    def _link(self, fd: int, parent_fd: int) -> str:
        """Gives a file without a name one for the instant before the rename."""
        while True:
            name = self._next_name()
            with suppress(FileExistsError):
                os.link(f"/proc/self/fd/{fd}", name, dst_dir_fd=parent_fd, follow_symlinks=True)
                return name

    def _next_name(self) -> str:
        # A crash may have left the same name behind: whoever meets it takes the next one.
        return f"{TEMPORARY_PREFIX}{os.getpid()}-{next(self._numbers)}"


def remove_temporaries(root_fd: int) -> int:
    """Removes the halves of replacements that a killed process left below the root; returns how many there were. Only
    while nobody else writes there."""
    removed = 0
    for folder_fd, item in everything(root_fd):
        if item.name.startswith(TEMPORARY_PREFIX) and item.is_file(follow_symlinks=False):
            with suppress(OSError):
                os.unlink(item.name, dir_fd=folder_fd)
                removed += 1
    return removed


def _write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def _copy_identity(name: str, parent_fd: int, existing: os.stat_result, fd: int) -> None:
    """Owner and extended attributes, as far as this process may set them."""
    if (existing.st_uid, existing.st_gid) != (os.geteuid(), os.getegid()):
        with suppress(PermissionError):
            os.fchown(fd, existing.st_uid, existing.st_gid)
    with suppress(OSError):
        old = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=parent_fd)
        try:
            for attribute in os.listxattr(old):
                with suppress(OSError):
                    os.setxattr(fd, attribute, os.getxattr(old, attribute))
        finally:
            os.close(old)
