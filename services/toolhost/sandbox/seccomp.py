"""The system calls that no command in a sandbox may make, as a program for the kernel's filter. PURE.

Invariant: whatever is refused is refused with an error the caller can handle, never with a signal; a machine whose
numbers are not known gets no program, and a call by another machine's numbers (32 bit, x32) is refused as a whole.

bubblewrap takes the program as bytes on a descriptor. The format is classic BPF over `struct seccomp_data`
(Documentation/userspace-api/seccomp_filter.rst): number at 0, architecture at 4, arguments from 16, eight bytes each.
"""

import errno
import struct
from collections.abc import Mapping, Sequence
from typing import NamedTuple

# What reaches beyond the sandbox, or is a large part of the kernel that no build or test needs: other processes and
# their memory, mounts, namespaces, keys, tracing, modules, the clock.
_DENIED_X86_64 = {
    "ptrace": 101, "syslog": 103, "pivot_root": 155, "chroot": 161, "acct": 163, "settimeofday": 164, "mount": 165,
    "umount2": 166, "swapon": 167, "swapoff": 168, "reboot": 169, "iopl": 172, "ioperm": 173, "init_module": 175,
    "delete_module": 176, "quotactl": 179, "lookup_dcookie": 212, "clock_settime": 227, "kexec_load": 246,
    "add_key": 248, "request_key": 249, "keyctl": 250, "unshare": 272, "perf_event_open": 298, "fanotify_init": 300,
    "open_by_handle_at": 304, "setns": 308, "process_vm_readv": 310, "process_vm_writev": 311, "kcmp": 312,
    "finit_module": 313, "kexec_file_load": 320, "bpf": 321, "userfaultfd": 323,
}  # fmt: skip
_DENIED_AARCH64 = {
    "lookup_dcookie": 18, "umount2": 39, "mount": 40, "pivot_root": 41, "chroot": 51, "quotactl": 60, "acct": 89,
    "unshare": 97, "kexec_load": 104, "init_module": 105, "delete_module": 106, "clock_settime": 112, "syslog": 116,
    "ptrace": 117, "reboot": 142, "settimeofday": 170, "add_key": 217, "request_key": 218, "keyctl": 219,
    "swapon": 224, "swapoff": 225, "perf_event_open": 241, "fanotify_init": 262, "open_by_handle_at": 265,
    "setns": 268, "process_vm_readv": 270, "process_vm_writev": 271, "kcmp": 272, "finit_module": 273, "bpf": 280,
    "userfaultfd": 282, "kexec_file_load": 294,
}  # fmt: skip
# Since Linux 5.1 every architecture has the same numbers.
_DENIED_EVERYWHERE = {
    "open_tree": 428, "move_mount": 429, "fsopen": 430, "fsconfig": 431, "fsmount": 432, "fspick": 433,
    "pidfd_getfd": 438, "mount_setattr": 442, "quotactl_fd": 443, "open_tree_attr": 467,
}  # fmt: skip
# As if the kernel were older, so that callers take their other way. The flags of clone3 lie in memory, where no filter
# can look; io_uring makes calls that no filter sees.
_ABSENT = {"io_uring_setup": 425, "io_uring_enter": 426, "io_uring_register": 427, "clone3": 435}

# CLONE_NEW* but the time namespace, whose bit clone() uses for the signal.
_NEW_NAMESPACES = 0x7E020000
# Both put characters into the terminal of somebody else.
_TERMINAL_INPUT = {"TIOCSTI": 0x5412, "TIOCLINUX": 0x541C}
# The families of sockets a program may open. Others are not bound to a network namespace (AF_VSOCK reaches the
# hypervisor) or not needed.
_FAMILIES = {"AF_UNIX": 1, "AF_INET": 2, "AF_INET6": 10, "AF_NETLINK": 16}

_LOAD, _EQUAL, _ABOVE, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_ALLOW, _ERROR = 0x7FFF0000, 0x00050000
_X32 = 0x40000000
_AT_NUMBER, _AT_ARCHITECTURE, _AT_FIRST, _AT_SECOND = 0, 4, 16, 24


class _Machine(NamedTuple):
    architecture: int
    denied: Mapping[str, int]
    clone: int
    ioctl: int
    socket: int


_MACHINES = {
    "x86_64": _Machine(0xC000003E, _DENIED_X86_64, clone=56, ioctl=16, socket=41),
    "aarch64": _Machine(0xC00000B7, _DENIED_AARCH64, clone=220, ioctl=29, socket=198),
}


class _Test(NamedTuple):
    """Go on at the label when the loaded word passes, else with the next line."""

    code: int
    value: int
    label: str


class _Plain(NamedTuple):
    code: int
    value: int
    label: str = ""


def program(machine: str) -> bytes:
    """The filter for a machine as `platform.machine()` names it; empty where there is none."""
    known = _MACHINES.get(machine)
    return _assembled(_lines(known)) if known is not None else b""


def refused(machine: str) -> dict[str, int]:
    """The calls that are refused whatever their arguments are, by name."""
    known = _MACHINES.get(machine)
    return {**known.denied, **_DENIED_EVERYWHERE, **_ABSENT} if known is not None else {}


def _lines(machine: _Machine) -> list[_Test | _Plain]:
    """A label in a `_Plain` names the line itself."""
    denied = [*machine.denied.values(), *_DENIED_EVERYWHERE.values()]
    return [
        _Plain(_LOAD, _AT_ARCHITECTURE),
        _Test(_EQUAL, machine.architecture, "native"),
        _Plain(_RETURN, _ERROR | errno.ENOSYS),
        _Plain(_LOAD, _AT_NUMBER, "native"),
        _Test(_ABOVE, _X32, "absent"),
        *(_Test(_EQUAL, number, "absent") for number in _ABSENT.values()),
        *(_Test(_EQUAL, number, "denied") for number in denied),
        _Test(_EQUAL, machine.clone, "clone"),
        _Test(_EQUAL, machine.ioctl, "ioctl"),
        _Test(_EQUAL, machine.socket, "socket"),
        _Plain(_RETURN, _ALLOW, "allowed"),
        _Plain(_LOAD, _AT_FIRST, "clone"),
        _Test(_ANY_BIT, _NEW_NAMESPACES, "denied"),
        _Plain(_RETURN, _ALLOW),
        _Plain(_LOAD, _AT_SECOND, "ioctl"),
        *(_Test(_EQUAL, request, "denied") for request in _TERMINAL_INPUT.values()),
        _Plain(_RETURN, _ALLOW),
        _Plain(_LOAD, _AT_FIRST, "socket"),
        *(_Test(_EQUAL, family, "family") for family in _FAMILIES.values()),
        _Plain(_RETURN, _ERROR | errno.EAFNOSUPPORT),
        _Plain(_RETURN, _ALLOW, "family"),
        _Plain(_RETURN, _ERROR | errno.EPERM, "denied"),
        _Plain(_RETURN, _ERROR | errno.ENOSYS, "absent"),
    ]


def _assembled(lines: Sequence[_Test | _Plain]) -> bytes:
    places = {
        line.label: place for place, line in enumerate(lines) if isinstance(line, _Plain) and line.label
    }
    code = bytearray()
    for place, line in enumerate(lines):
        # A jump counts the lines it leaps over, in one byte.
        leap = places[line.label] - place - 1 if isinstance(line, _Test) else 0
        assert 0 <= leap <= 255
        code += struct.pack("=HBBI", line.code, leap, 0, line.value)
    return bytes(code)
