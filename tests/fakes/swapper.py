"""Somebody who swaps names for links all the time, as fast as the kernel can, in a process of its own."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

# The two names of each pair change places, each time at once (RENAME_EXCHANGE), until it is killed.
_PROGRAM = """
import ctypes, os, sys
exchange = ctypes.CDLL(None).renameat2
pairs = list(zip(*[iter(map(os.fsencode, sys.argv[1:]))] * 2))
print("go", flush=True)
while True:
    for first, second in pairs:
        exchange(-100, first, -100, second, 2)
"""


@contextmanager
def swapping(*pairs: tuple[Path, Path]) -> Generator[None]:
    """The names of each pair change places while the context lasts."""
    names = [str(path) for pair in pairs for path in pair]
    with subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", _PROGRAM, *names], stdout=subprocess.PIPE
    ) as swapper:
        try:
            assert swapper.stdout is not None
            assert swapper.stdout.readline() == b"go\n"
            yield
        finally:
            swapper.kill()
