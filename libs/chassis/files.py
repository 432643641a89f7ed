"""Files that are written whole or not at all.

Invariant: what a run said is nobody else's business, so a file is for its owner's eyes only; half of one is none.
"""

import os
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO


@contextmanager
def written_whole(target: Path) -> Generator[TextIO]:
    """A text file that is there once the context ends well. Raises `OSError`."""
    part = target.with_name(f"{target.name}.part")
    try:
        with os.fdopen(
            os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8"
        ) as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        part.replace(target)
    finally:
        part.unlink(missing_ok=True)
