"""Which files of a folder are documents, and their texts. Blocking.

Invariant: only regular files are read, links are not followed, and whatever is passed over is counted under its reason.
Names that begin with a dot are passed over: that is where secrets and tools' own files lie.
"""

import codecs
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from libs.contracts.errors import ConfigurationError
from services.toolhost.entries import BULK_FOLDERS

# What people write fits; beyond that a text is data.
FILE_BYTES_MAX = 1 << 20
# Some ten times a large project's; a run that finds more was given the wrong folder.
FILES_MAX = 50_000
_SNIFF_BYTES = 8_192


class Source(NamedTuple):
    """A part of the documents: all below the folder `root`, or its file `only`; `forgotten`: none any more. Paths begin
    with `name`."""

    name: str
    root: Path
    only: Path | None = None
    forgotten: bool = False

    def path(self, file: Path) -> str:
        """The document's path. Bytes that are no text are escaped."""
        if file == self.root:
            return self.name
        return f"{self.name}/{os.fsencode(file.relative_to(self.root)).decode('utf-8', 'backslashreplace')}"

    def holds(self, path: str) -> bool:
        """Whether a document with this path is of this part."""
        return path.startswith(f"{self.name}/") if self.only is None else path == self.path(self.only)


class Found(NamedTuple):
    """A file to look into, or what is passed over and why. `kept`: what was found there before may still be there."""

    path: str
    file: Path
    passed_over: str = ""
    kept: bool = False


class Text(NamedTuple):
    """What a file holds, or why it is passed over; `kept` as above."""

    text: str
    passed_over: str = ""
    kept: bool = False


def source_of(given: str, name: str | None) -> Source:
    """What an argument of the command stands for. Raises `ConfigurationError`."""
    path = Path(given).resolve()
    if path.is_dir():
        return Source(name or path.name or "root", path)
    if path.is_file():
        return Source(name or path.parent.name or "root", path.parent, path)
    raise ConfigurationError(f"there is no file or folder {given}; what is gone from it: --forget NAME")


def files_of(source: Source) -> Iterator[Found]:
    """The files of a source, folder by folder in the order of their names."""
    if source.forgotten:
        return iter(())
    if source.only is not None:
        return iter([Found(source.path(source.only), source.only)])
    return _below(source, source.root)


def text_of(file: Path) -> Text:
    """The text of a file that was found."""
    try:
        # What is a pipe by now must not block.
        fd = os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(fd, "rb") as opened:
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                return Text("", "no regular file")
            data = opened.read(FILE_BYTES_MAX + 1)
    except FileNotFoundError:
        return Text("", "gone meanwhile")
    except OSError:
        return Text("", "unreadable", kept=True)
    if len(data) > FILE_BYTES_MAX:
        return Text("", f"larger than {FILE_BYTES_MAX >> 20} MiB")
    data = data.removeprefix(codecs.BOM_UTF8)
    if b"\0" in data[:_SNIFF_BYTES]:
        return Text("", "binary")
    try:
        return Text(data.decode())
    except UnicodeDecodeError:
        return Text("", "not UTF-8")


def _below(source: Source, folder: Path) -> Iterator[Found]:
    try:
        with os.scandir(folder) as listing:
            entries = sorted(listing, key=lambda entry: entry.name)
    except OSError:
        yield Found(source.path(folder), folder, "unreadable folder", kept=True)
        return
    for entry in entries:
        here = Path(entry.path)
        path = source.path(here)
        if entry.name.startswith("."):
            yield Found(path, here, "hidden")
        elif entry.is_dir(follow_symlinks=False):
            if entry.name in BULK_FOLDERS:
                yield Found(path, here, "made by tools")
            else:
                yield from _below(source, here)
        elif entry.is_file(follow_symlinks=False):
            yield Found(path, here)
        else:
            yield Found(path, here, "link" if entry.is_symlink() else "no regular file")
