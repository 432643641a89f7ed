"""Opens directories beneath a root descriptor: one `openat2` call where the kernel has it, else step by step.

Invariant: the descriptor that comes back is the root or lies below it, and no symbolic link was followed on the
way, however the tree changes meanwhile. A link anywhere in the path is `ELOOP`.
"""

import ctypes
import errno
import functools
import os
import stat
import sys
from collections.abc import Iterator, Sequence

DIRECTORY_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC

# The number of openat2 is the same on every architecture that Linux added it to (it came after the unification).
_OPENAT2 = 437
_RESOLVE_NO_MAGICLINKS = 0x02
_RESOLVE_NO_SYMLINKS = 0x04
_RESOLVE_BENEATH = 0x08
# The kernel answers EAGAIN when a rename raced with the look-up; a tree that is renamed this often in a row is an attack.
_RACES_MAX = 32


class _OpenHow(ctypes.Structure):
    _fields_ = (("flags", ctypes.c_uint64), ("mode", ctypes.c_uint64), ("resolve", ctypes.c_uint64))


def has_openat2(root_fd: int) -> bool:
    """Whether this kernel (and its seccomp filter) answers `openat2`."""
    if not sys.platform.startswith("linux"):
        return False
    try:
        os.close(open_in_one_call(root_fd, ()))
    except OSError:
        return False
    return True


def open_in_one_call(root_fd: int, parts: Sequence[str]) -> int:
    """The directory `parts` below the root, by `openat2`. Raises `OSError`."""
    libc = _libc()
    # Without O_NOFOLLOW: with it, the kernel calls a link at the end "not a directory" instead of a link.
    how = _OpenHow(
        DIRECTORY_FLAGS & ~os.O_NOFOLLOW, 0, _RESOLVE_BENEATH | _RESOLVE_NO_MAGICLINKS | _RESOLVE_NO_SYMLINKS
    )
    path = os.fsencode("/".join(parts) or ".")
    for _ in range(_RACES_MAX):
        fd = int(libc.syscall(_OPENAT2, root_fd, path, ctypes.byref(how), ctypes.sizeof(how)))
        if fd >= 0:
            return fd
        code = ctypes.get_errno()
        if code not in (errno.EAGAIN, errno.EINTR):
            raise OSError(code, os.strerror(code))
    raise OSError(errno.ELOOP, "the path changes faster than it can be resolved")


def open_step_by_step(root_fd: int, parts: Sequence[str], *, create: bool = False) -> int:
    """The directory `parts` below the root, one component at a time; `create` makes the missing ones. Raises `OSError`."""
    fd = os.open(".", DIRECTORY_FLAGS, dir_fd=root_fd)
    for part in parts:
        try:
            if create:
                _make(part, fd)
            following = _step(part, fd)
        finally:
            os.close(fd)
        fd = following
    return fd


def everything(root_fd: int) -> Iterator[tuple[int, "os.DirEntry[str]"]]:
    """All that lies below the root, each with a descriptor of its folder, which is closed once it is done. Nothing is
    followed or left out; folders that cannot be opened are passed over. For housekeeping, not for what tools show."""
    waiting: list[tuple[str, ...]] = [()]
    while waiting:
        parts = waiting.pop()
        try:
            fd = open_step_by_step(root_fd, parts)
        except OSError:
            continue
        try:
            with os.scandir(fd) as listing:
                for item in listing:
                    yield fd, item
                    if item.is_dir(follow_symlinks=False):
                        waiting.append((*parts, item.name))
        except OSError:
            continue
        finally:
            os.close(fd)


@functools.cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _make(part: str, fd: int) -> None:
    try:
        os.mkdir(part, 0o755, dir_fd=fd)
    except FileExistsError:
        return
    # What will be written in it is promised to be there after a power cut, so the folder has to be, too.
    os.fsync(fd)


def _step(part: str, fd: int) -> int:
    try:
        return os.open(part, DIRECTORY_FLAGS, dir_fd=fd)
    except NotADirectoryError:
        # O_DIRECTORY says "not a directory" of a link to one, too: name the link, it is what the caller must know.
        if stat.S_ISLNK(os.stat(part, dir_fd=fd, follow_symlinks=False).st_mode):
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP)) from None
        raise
