"""The step between the launcher and a program it starts: run as `python -I -S tether.py PARENT_PID PROGRAM ARGUMENTS…`.

Invariant: the program dies with the launcher, also when that is killed by SIGKILL. The kernel's wish for a signal at
the parent's death survives `exec`, so setting it here needs no code in the child of a fork of a threaded process.
Standard library only, so that it costs milliseconds; where there is no `prctl` the program is just executed.
"""

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1
EXIT_ORPHANED = 125
EXIT_NOT_FOUND = 127


def main() -> None:
    """Become the program; the exit code tells when that failed."""
    parent, program = int(sys.argv[1]), sys.argv[2:]
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        # The launcher died before the wish was known to the kernel.
        sys.exit(EXIT_ORPHANED)
    try:
        os.execv(program[0], program)
    except OSError as error:
        sys.stderr.write(f"{program[0]}: {error.strerror}\n")
        sys.exit(EXIT_NOT_FOUND)


if __name__ == "__main__":
    main()
