"""Changing one file, once: first a plan with the digests before and after, then the effect.

Invariant: applying a plan twice is applying it once. Finding the planned bytes on disk is success; finding anything
but what the plan began from is `FileChanged`, and nothing is written. The plan's digests go to the journal first, so
a repetition after a crash asks `is_applied` before it plans anew.
"""

import hashlib
import os

import msgspec

from services.toolhost.errors import FileChanged, FileMissing
from services.toolhost.guard import WorkspaceGuard
from services.toolhost.tools import Outcome

# What a tool may hold in memory of one file that it changes; sources are far smaller, larger files are data.
FILE_BYTES_MAX = 16 << 20
_BLOCK_BYTES = 1 << 20


class FilePlan(msgspec.Struct, frozen=True, kw_only=True):
    """The change: `before_sha256` is None for a new file. `outcome` is the answer once it is done."""

    path: str
    before_sha256: str | None
    after_sha256: str
    after: bytes
    outcome: Outcome


def plan_of(
    path: str, *, before: str | None, after: bytes, said: str, metadata: dict[str, object]
) -> FilePlan:
    """A plan with its digests, in the metadata too."""
    digest = hashlib.sha256(after).hexdigest()
    digests: dict[str, object] = {"path": path, "sha256_before": before, "sha256": digest}
    outcome = Outcome(ok=True, output=said, metadata={**digests, **metadata})
    return FilePlan(path=path, before_sha256=before, after_sha256=digest, after=after, outcome=outcome)


def apply(guard: WorkspaceGuard, plan: FilePlan) -> Outcome:
    """Carries the plan out, or finds that it has been. Blocking."""
    found = sha256_of(guard, plan.path)
    if found == plan.after_sha256:
        return plan.outcome
    if found != plan.before_sha256:
        raise FileChanged(
            f"{plan.path!r} was changed by something else meanwhile; read it again, then repeat the change"
        )
    guard.replace(plan.path, plan.after)
    return plan.outcome


def is_applied(guard: WorkspaceGuard, path: str, after_sha256: str) -> bool:
    """Whether a journaled change is on disk. Blocking."""
    return sha256_of(guard, path) == after_sha256


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
