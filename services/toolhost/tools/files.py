"""Changing files, once: first a plan with the digests before and after, then the effect.

Invariant: applying a plan twice is applying it once, and a plan of several files is applied whole or not at all.
Finding the planned bytes on disk is success; finding anything but what the plan began from is `FileChanged`, and
nothing is written. The plan's digests go to the journal first, so a repetition after a crash asks `is_applied` before
it plans anew.
"""

import hashlib
import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack, nullcontext

import msgspec

from libs.policy.redaction import MARK, MARK_BYTES, Redaction
from services.toolhost.errors import FileChanged, FileMissing, RedactedText
from services.toolhost.guard import WorkspaceGuard
from services.toolhost.room import Usage
from services.toolhost.tools import Outcome
from services.toolhost.tools.names import shown
from services.toolhost.undo import UndoLog

_BLOCK_BYTES = 1 << 20
# In a journal, of a path: there is no file any more.
GONE = ""


class FileChange(msgspec.Struct, frozen=True, kw_only=True):
    """One file of a plan: `before_sha256` is None for a new file, `after` and its digest are None for one that goes.
    `mode` holds the permission bits that it will have; None keeps them."""

    path: str
    before_sha256: str | None
    after: bytes | None
    after_sha256: str | None
    mode: int | None = None


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """The change. `outcome` is the answer once it is done."""

    changes: tuple[FileChange, ...]
    outcome: Outcome

    @property
    def before(self) -> dict[str, str | None]:
        """For the journal: the digests of the files as they were."""
        return {change.path: change.before_sha256 for change in self.changes}

    @property
    def after(self) -> dict[str, str]:
        """For the journal: the digests of the files as they will be."""
        return {change.path: change.after_sha256 or GONE for change in self.changes}


def change_of(path: str, *, before: str | None, after: bytes | None, mode: int | None = None) -> FileChange:
    digest = None if after is None else hashlib.sha256(after).hexdigest()
    return FileChange(path=path, before_sha256=before, after=after, after_sha256=digest, mode=mode)


def plan_of(path: str, *, before: str | None, after: bytes, said: str, metadata: dict[str, object]) -> Plan:
    """A plan for one file, with its digests in the metadata too."""
    change = change_of(path, before=before, after=after)
    digests: dict[str, object] = {"path": path, "sha256_before": before, "sha256": change.after_sha256}
    return Plan(changes=(change,), outcome=Outcome(ok=True, output=said, metadata={**digests, **metadata}))


def apply(guard: WorkspaceGuard, plan: Plan, undo: UndoLog) -> Outcome:
    """Carries the plan out, or finds that it has been. Blocking; plans of several files go one after the other."""
    with undo.alone if len(plan.changes) > 1 else nullcontext():
        return _applied(guard, plan, undo)


def _applied(guard: WorkspaceGuard, plan: Plan, undo: UndoLog) -> Outcome:
    waiting: list[FileChange] = []
    for change in plan.changes:
        found = sha256_of(guard, change.path)
        if _is_done(guard, change, found):
            continue
        waiting.append(change)
        if found != change.before_sha256:
            raise FileChanged(
                f"{change.path!r} was changed by something else meanwhile; read it again, then repeat the change"
            )
    guard.room.take(_added(guard, waiting))
    if len(waiting) > 1:
        undo.begin(guard, [(change.path, change.before_sha256, change.after_sha256) for change in waiting])
        with ExitStack() as unless_whole:
            unless_whole.callback(undo.restore, guard)
            _carry_out(guard, waiting)
            unless_whole.pop_all()
        undo.forget()
    else:
        _carry_out(guard, waiting)
    return plan.outcome


def require_seen(seen: Mapping[str, str], path: str, before: str | None, after: str | None) -> None:
    """Raises `FileChanged` when a file that would be replaced or removed whole is not what the run saw last. One that it
    never saw it may replace: it did not rely on what is there."""
    known = seen.get(path)
    if known is not None and before is not None and before not in (known, after):
        raise FileChanged(f"{path!r} has changed since you last saw it; read it again, then decide")


def require_no_marks(redaction: Redaction, path: str, before: bytes, after: bytes) -> None:
    """Raises `RedactedText` when a change would write the mark of a secret into a file that has secrets: what was shown so
    would be lost."""
    if after.count(MARK_BYTES) > before.count(MARK_BYTES) and redaction.finds(before):
        raise RedactedText(
            f"{path!r} would hold {MARK}, which stands for a secret of that file and is no text of it; leave those lines "
            "out of the change, or write what shall be there instead of the secret"
        )


def require_shown(path: str, data: bytes, wanted: Iterable[str]) -> None:
    """Raises `RedactedText` when a text that is looked for holds the mark of a secret, and the file does not."""
    if MARK_BYTES not in data and any(MARK in text for text in wanted):
        raise RedactedText(
            f"{MARK} stands for a secret that you are not shown and is not in {path!r}; name the place by lines without "
            "it. To replace the secret itself write the whole file anew"
        )


def is_applied(guard: WorkspaceGuard, after: Mapping[str, str]) -> bool:
    """Whether a journaled change (`Plan.after`) is on disk. Blocking."""
    return all((sha256_of(guard, path) or GONE) == digest for path, digest in after.items())


def done_before(before: Mapping[str, str | None], after: Mapping[str, str]) -> Outcome:
    """The answer of a change that an earlier attempt had made."""
    listed = ", ".join(map(shown, after))
    said = f"{listed}: as wanted, an earlier attempt of this call had written it"
    if len(after) > 1 or GONE in after.values():
        return Outcome(ok=True, output=said, metadata=digests_of(before, after))
    [(path, digest)] = after.items()
    metadata: dict[str, object] = {"path": path, "sha256": digest, "sha256_before": before.get(path)}
    return Outcome(ok=True, output=said, metadata=metadata)


def digests_of(before: Mapping[str, str | None], after: Mapping[str, str]) -> dict[str, object]:
    """Metadata of a change of several files: the digests after it (None: gone), and those before."""
    return {"files": {path: digest or None for path, digest in after.items()}, "files_before": dict(before)}


def sha256_of(guard: WorkspaceGuard, path: str) -> str | None:
    """The digest of the file, None if there is none. Blocking; bounded memory."""
    try:
        fd = guard.open_read(path)
    except FileMissing:
        return None
    digest = hashlib.sha256()
    with os.fdopen(fd, "rb", buffering=0) as file:
        while block := file.read(_BLOCK_BYTES):
            digest.update(block)
    return digest.hexdigest()


def line_count(data: bytes) -> int:
    """Lines as an editor counts them: a last line without an end counts, an empty file has none."""
    return data.count(b"\n") + (1 if data and not data.endswith(b"\n") else 0)


def _is_done(guard: WorkspaceGuard, change: FileChange, found: str | None) -> bool:
    if found != change.after_sha256:
        return False
    return change.mode is None or change.after is None or guard.stat(change.path).mode == change.mode


def _added(guard: WorkspaceGuard, changes: Sequence[FileChange]) -> Usage:
    """What the changes take of the workspace's quota."""
    size = files = 0
    for change in changes:
        if change.before_sha256 is not None:
            size, files = size - guard.stat(change.path).size_bytes, files - 1
        if change.after is not None:
            size, files = size + len(change.after), files + 1
    return Usage(size, files)


def _carry_out(guard: WorkspaceGuard, changes: Sequence[FileChange]) -> None:
    """What is written comes before what goes: a disk that is full is noticed before anything is lost."""
    for change in changes:
        if change.after is not None:
            guard.replace(change.path, change.after, mode=change.mode)
    for change in changes:
        if change.after is None:
            guard.unlink(change.path)
