"""`apply_patch`: changes several files at once, all of them or none. IDEMPOTENT by its digests (see `files.py`).

The forms are read in `libs/contracts/patches`, how hunks find their place stands in `patching.py`. Here is what the
parts of a patch mean for files: they are applied in the order in which they are written, each on what the ones before
it made; a file that is added must not exist, one that is changed, moved or deleted must, and a move has a free target.
"""

import asyncio
import hashlib
from collections.abc import Iterator

import msgspec

from libs.contracts.errors import PatchUnreadable
from libs.contracts.patches import parse
from libs.contracts.patches.files import FilePatch
from libs.contracts.tools import Semantics, ToolSpec
from services.toolhost.errors import (
    FileMissing,
    FileTooLarge,
    PatchConflict,
    PatchEmpty,
    PatchInvalid,
    PatchNoMatch,
    ToolFailure,
)
from services.toolhost.tools import Arguments, Outcome, ToolContext, decoded
from services.toolhost.tools.encodings import as_utf8
from services.toolhost.tools.files import (
    FileChange,
    Plan,
    apply,
    change_of,
    digests_of,
    line_count,
    require_no_marks,
    require_seen,
    require_shown,
)
from services.toolhost.tools.names import shown
from services.toolhost.tools.patching import content_of, patched
from services.toolhost.undo import FILE_BYTES_MAX

# All files of a patch are held in memory until it is known that all of it fits.
_BYTES_MAX = 64 << 20
_LINES_NAMED_MAX = 10
_EXECUTABLE = 0o111

SPEC = ToolSpec(
    name="apply_patch",
    description=(
        "Changes files of the workspace by a patch: all of it or, when any part does not fit, nothing. Form: "
        "'*** Begin Patch', then for each file '*** Update File: PATH' (optionally '*** Move to: PATH'), "
        "'*** Add File: PATH' or '*** Delete File: PATH', then '*** End Patch'. A hunk of an update begins with '@@' or "
        "'@@ a line before it, such as def f():'; its lines begin with a blank (context, at least three lines around a "
        "change), '-' or '+'. Every line of an added file begins with '+'. A unified diff is taken, too."
    ),
    parameters={
        "type": "object",
        "properties": {"patch": {"type": "string", "description": "The whole patch."}},
        "required": ["patch"],
        "additionalProperties": False,
    },
    semantics=Semantics.IDEMPOTENT,
    timeout_s=60.0,
)


class ApplyPatchArguments(msgspec.Struct, frozen=True, kw_only=True):
    patch: str


async def plan(context: ToolContext, arguments: Arguments) -> Plan:
    """What the files would be. Nothing is changed."""
    return await asyncio.to_thread(_planned, context, decoded(arguments, ApplyPatchArguments))


async def run(context: ToolContext, arguments: Arguments) -> Outcome:
    return await asyncio.to_thread(apply, context.guard, await plan(context, arguments), context.undo)


def _planned(context: ToolContext, wanted: ApplyPatchArguments) -> Plan:
    try:
        parts = parse(wanted.patch)
    except PatchUnreadable as unreadable:
        raise PatchInvalid(unreadable.message) from None
    files = _Files(context)
    said = [files.take(part) for part in parts]
    changes = files.changes()
    if not changes:
        raise PatchEmpty("the patch leaves every file as it is; nothing would change")
    plan = Plan(changes=changes, outcome=Outcome(ok=True, output=""))
    names = "1 file" if len(changes) == 1 else f"{len(changes)} files"
    outcome = Outcome(
        ok=True, output="\n".join([f"patched {names}:", *said]), metadata=digests_of(plan.before, plan.after)
    )
    return msgspec.structs.replace(plan, outcome=outcome)


class _File(msgspec.Struct, kw_only=True):
    """A file while the patch is gone through: as it is on disk, and as it will be (None: there is none)."""

    before: bytes | None
    mode: int | None
    now: bytes | None
    new_mode: int | None


class _Files:
    """The files that the patch touches, read once."""

    def __init__(self, context: ToolContext) -> None:
        self._context = context
        self._files: dict[str, _File] = {}
        self._bytes = 0

    def take(self, part: FilePatch) -> str:
        """Make one part of the patch happen here; what is said of it. Raises `ToolFailure`, which names the file."""
        path = part.path
        try:
            path = self._context.guard.spelled(path)
            match part.kind:
                case "add":
                    return self._add(path, part)
                case "update":
                    return self._update(path, part)
                case "delete":
                    return self._delete(path, part)
        except ToolFailure as failure:
            if not failure.message.startswith(repr(path)):
                failure.message = f"{shown(path)}: {failure.message}"
            failure.message += " (nothing was changed)"
            raise

    def changes(self) -> tuple[FileChange, ...]:
        """What is different from the disk, in the order of the patch."""
        return tuple(
            change_of(
                path,
                before=None if file.before is None else hashlib.sha256(file.before).hexdigest(),
                after=file.now,
                mode=file.new_mode,
            )
            for path, file in self._files.items()
            if file.now != file.before or (file.now is not None and file.new_mode not in (None, file.mode))
        )

    def _add(self, path: str, part: FilePatch) -> str:
        file = self._file(path)
        if file.now is not None:
            raise PatchConflict("it exists already; update it, or delete it in the same patch first")
        file.now = content_of(part.hunks)
        require_no_marks(self._context.redaction, path, file.before or b"", file.now)
        file.new_mode = 0o755 if part.executable else None
        self._hold(len(file.now))
        return f"A {shown(path)}: {line_count(file.now)} lines"

    def _update(self, path: str, part: FilePatch) -> str:
        file = self._file(path)
        if file.now is None and part.move is not None and part.hunks and part.hunks[0].old_start is not None:
            # Other programs name the old file `x.orig`: as for `patch`, the one that is there is meant.
            path, part = self._context.guard.spelled(part.move), msgspec.structs.replace(part, move=None)
            file = self._file(path)
        data = self._content(path, file)
        if not part.hunks and part.move is None and part.executable is None:
            raise PatchEmpty("its update has no hunks, so nothing would change")
        text = as_utf8(data)
        require_shown(path, text.data, _looked_for(part))
        fitted = patched(text.data, part.hunks)
        require_no_marks(self._context.redaction, path, text.data, fitted.after)
        after = text.back(fitted.after)
        mode = file.new_mode if file.new_mode is not None else file.mode
        if part.executable is not None and mode is not None:
            mode = mode | 0o111 if part.executable else mode & ~_EXECUTABLE
            file.new_mode = mode
        self._hold(len(after))
        notes = _places(fitted.lines) + "".join(f", found but for {what}" for what in fitted.overlooked)
        target = self._context.guard.spelled(part.move) if part.move is not None else path
        if target == path:
            file.now = after
            return f"M {shown(path)}{notes}"
        moved = self._file(target)
        if moved.now is not None:
            raise PatchConflict(f"it cannot become {shown(target)}, which exists already")
        file.now, file.new_mode = None, None
        moved.now, moved.new_mode = after, mode
        return f"R {shown(path)} -> {shown(target)}{notes}"

    def _delete(self, path: str, part: FilePatch) -> str:
        file = self._file(path)
        data = self._content(path, file)
        if part.hunks and patched(as_utf8(data).data, part.hunks).after:
            raise PatchNoMatch("the patch deletes it, but it holds more than the patch says; read it again")
        if not part.hunks and file.before is not None:
            require_seen(self._context.seen, path, hashlib.sha256(file.before).hexdigest(), None)
        file.now, file.new_mode = None, None
        return f"D {shown(path)}"

    def _file(self, path: str) -> _File:
        known = self._files.get(path)
        if known is None:
            guard = self._context.guard
            guard.require_writable(path)
            try:
                before = guard.read(path, bytes_max=FILE_BYTES_MAX)
                mode = guard.stat(path).mode
                self._hold(len(before))
            except FileMissing:
                before = mode = None
            known = self._files[path] = _File(before=before, mode=mode, now=before, new_mode=None)
        return known

    def _content(self, path: str, file: _File) -> bytes:
        if file.now is None:
            raise FileMissing(f"{path!r} does not exist{self._other_name(path)}")
        return file.now

    def _other_name(self, path: str) -> str:
        """Git writes a/ and b/ before names, and models carry them over into the other form."""
        rest = path[2:] if path.startswith(("a/", "b/")) else ""
        try:
            self._context.guard.stat(rest)
        except ToolFailure:
            return "; list the folder to see what does"
        return f"; did you mean {shown(rest)}?"

    def _hold(self, size: int) -> None:
        self._bytes += size
        if self._bytes > _BYTES_MAX:
            raise FileTooLarge(f"the files of the patch hold more than {_BYTES_MAX >> 20} MiB; split it")


def _looked_for(part: FilePatch) -> Iterator[str]:
    return (line.text for hunk in part.hunks for line in hunk.lines if line.sign != "+")


def _places(lines: list[int]) -> str:
    if not lines:
        return ""
    named = ", ".join(map(str, lines[:_LINES_NAMED_MAX])) + (", …" if len(lines) > _LINES_NAMED_MAX else "")
    return (
        f": {len(lines)} hunk{'s' if len(lines) > 1 else ''} at line{'s' if len(lines) > 1 else ''} {named}"
    )
