"""Where the embedded index lies: `<data>/knowledge/<tenant>/`, a folder of words and a file of vectors.

Invariant: two tenants never share a file. The number in a name is the version of what is inside: a later version of it
has another name, and the next index run fills that.
"""

from pathlib import Path

from services.toolhost.workspace import workspace_key


def tenant_folder(root: Path, tenant: str) -> Path:
    return root / workspace_key(tenant)


def words_folder(root: Path, tenant: str) -> Path:
    return tenant_folder(root, tenant) / "words-1"


def vectors_file(root: Path, tenant: str) -> Path:
    return tenant_folder(root, tenant) / "vectors-1.sqlite"


def runs_file(root: Path, tenant: str) -> Path:
    """What the index runs on this machine did."""
    return tenant_folder(root, tenant) / "runs.json"


def is_indexed(root: Path) -> bool:
    """Whether there is an embedded index of any tenant."""
    return next(root.glob("*/words-1"), None) is not None
