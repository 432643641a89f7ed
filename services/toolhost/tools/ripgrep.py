"""Sieves files with ripgrep, where it is installed, before our own engine looks at them.

Invariant: with it and without it a search has the same answer. It is asked only for patterns that mean the same in both
dialects, its counts are believed only of files of plain ASCII lines, and what a model reads is always found by our own
engine. It is given descriptors that the guard opened, never paths, so it reads what the guard would.
"""

import os
import re
import shutil
import subprocess
import threading
from collections.abc import Sequence
from typing import NamedTuple

# Below this the worker of our own engine is done before two processes have started.
WORTH_BYTES = 4 << 20
# Files at once of one search, and such searches at once: most of the 1,024 files that a process may usually have open are
# left for everything else. A search that finds no place here does without.
BATCH_FILES = 128
PLACES = threading.BoundedSemaphore(2)
_THREADS = "2"
# Everything that the two engines could see differently: bytes beyond ASCII, CR, NUL and other controls.
_ODD = r"[\x00-\x08\x0b-\x1f\x7f-\xff]"
_TOKEN = re.compile(
    r"""
      (?P<atom> [A-Za-z0-9_\ \t!"#%&',\-/:;<=>@`~.]
              | \\[dDwWsS]
              | \\[.^$*+?{}\[\]\\|()\-]
              | \[\^?(?:[A-Za-z0-9]-[A-Za-z0-9]|[A-Za-z0-9_\ ,:;=!@%./<>"'(){}*+?$|\#]|\\[dws.\]\[\\^\-])+\]
              | \) )
    | (?P<repeat> (?:[*+?]|\{\d{1,2}(?:,\d{0,2})?\})\?? )
    | (?P<other> \((?:\?:)?|\||\\b|(?<![\s\S])\^|\$(?![\s\S]) )
    """,
    re.VERBOSE,
)


class Sieve(NamedTuple):
    """A search that ripgrep can do. Blocking; `deadline_s` bounds one batch."""

    program: str
    pattern: str
    ignore_case: bool

    def counts(self, files: Sequence[int], deadline_s: float) -> list[int | None]:
        """For each open file how many lines match, `None` where our own engine has to look."""
        case = "--ignore-case" if self.ignore_case else "--case-sensitive"
        try:
            strange = self._said(files, deadline_s, "--files-with-matches", "-e", _ODD)
            counted = self._said(files, deadline_s, "--count", case, "-e", self.pattern)
        except (OSError, subprocess.SubprocessError):
            return [None] * len(files)
        found = dict(_pairs(counted))
        aside = {int(os.path.basename(name)) for name in strange.split(b"\0") if name}
        return [None if fd in aside else found.get(fd, 0) for fd in files]

    def _said(self, files: Sequence[int], deadline_s: float, *arguments: str) -> bytes:
        """Its output. Raises `SubprocessError` when it takes too long or understood something else than we."""
        ran = subprocess.run(
            [
                *(self.program, "--no-config", "--no-messages", "--text", "--encoding=none", "--no-unicode"),
                *("--color=never", "--with-filename", "--null", f"--threads={_THREADS}", *arguments, "--"),
                *(f"/proc/self/fd/{fd}" for fd in files),
            ],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            pass_fds=files,
            env={},
            start_new_session=True,
            timeout=deadline_s,
            check=False,
        )
        if ran.returncode not in (0, 1):  # 1: nothing found.
            raise subprocess.SubprocessError(f"rg ended with {ran.returncode}")
        return ran.stdout


def installed(program_path: str) -> str | None:
    """Where ripgrep is, if it is."""
    return shutil.which("rg", path=program_path)


def sieve_for(program: str | None, pattern: str, *, ignore_case: bool, bytes_in_all: int) -> Sieve | None:
    """A sieve for the search, if there can be one that is worth it."""
    if program is None or bytes_in_all < WORTH_BYTES or not means_the_same(pattern):
        return None
    return Sieve(program, pattern, ignore_case)


def means_the_same(pattern: str) -> bool:
    """Whether the pattern is in the part that Python's dialect and ripgrep's have in common: ASCII characters, classes
    of them, groups, choices, edges (`^` and `$` only around everything: elsewhere an old ripgrep errs on empty lines), and
    one repetition of what can be repeated."""
    at = 0
    repeatable = False
    while at < len(pattern):
        token = _TOKEN.match(pattern, at)
        if token is None or (token["repeat"] and not repeatable):
            return False
        repeatable = token["atom"] is not None
        at = token.end()
    try:
        re.compile(pattern)
    except (re.error, OverflowError, RecursionError):
        return False
    return True


def _pairs(said: bytes) -> list[tuple[int, int]]:
    """Descriptor and count of each line `path NUL count`."""
    return [
        (int(os.path.basename(name)), int(count))
        for name, _, count in (line.partition(b"\0") for line in said.splitlines())
    ]
