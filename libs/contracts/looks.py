"""What a gateway asks a tool host for people: the files of a workspace, the bytes of one, the change since a run began.

Invariant: a look changes nothing and needs no claim, so it works on runs that are over; it says which workspace it is
about, never where that lies. Answers fit a message: lists and files come in parts.
"""

import msgspec

from libs.contracts.workspaces import Saved

# One part of a file: base64 makes a third more of it, and a message holds 1 MiB.
PART_BYTES_MAX = 384 * 1024
# What is given of a change: beyond that a path narrows it.
DIFF_BYTES_MAX = 640 * 1024
# What one page of a list may take before its entries are cut off.
LIST_BYTES_MAX = 512 * 1024


class ListFiles(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="look.list"):
    """Files and links in the order of their names, behind `after` (bytes of a path), `limit` at most."""

    after: bytes = b""
    limit: int


class ReadPart(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="look.read"):
    """`length` bytes of a file from `offset` on; `version` (of the first part) makes sure that it is still the same."""

    path: bytes
    offset: int = 0
    length: int = PART_BYTES_MAX
    version: str = ""


class ShowDiff(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="look.diff"):
    """What differs from the commit that a run began from; `path` narrows it."""

    baseline: str
    path: bytes = b""


Question = ListFiles | ReadPart | ShowDiff


class Look(msgspec.Struct, frozen=True, kw_only=True):
    """The request on `<p>.call.look.<boot>`. With `saved` the snapshot is looked at instead of the folder."""

    tenant: str
    workspace: str
    workspace_id: str
    question: Question
    saved: Saved | None = None


class FileFound(msgspec.Struct, frozen=True, kw_only=True):
    path: bytes
    size_bytes: int
    link: bool = False


class FileList(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="look.files"):
    """`more`: there are files behind the last one; `complete`: false when a bound ended the walk of the workspace."""

    files: list[FileFound]
    more: bool
    complete: bool = True


class Part(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="look.part"):
    """A part of a file of `size_bytes`. `sha256` of the whole comes with the first part."""

    data: bytes
    size_bytes: int
    version: str
    sha256: str = ""


class Diff(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="look.diffed"):
    """A unified diff in the bytes of the files, without names of commits; `cut` when there is more of it."""

    text: bytes
    cut: bool = False


class NotSeen(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="look.failed"):
    """Why there is nothing to see. `reason`: `missing` (no such file), `changed` (another version by now), `large`,
    `baseline` (the commit is not there), `absent` (no such workspace here), `fault`."""

    reason: str
    message: str


Answer = FileList | Part | Diff | NotSeen
