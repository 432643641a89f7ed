"""`--workspace`: a directory of this machine becomes a workspace by a link in the root of all workspaces.

Invariant: the same directory always gets the same name, so that its runs share one workspace and its baseline; two
directories never get the same. A link lies where the tool hosts look for it, or is not made at all.
"""

import hashlib
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from deploy.cli.terminal import printable
from libs.client import PerdureClient
from libs.contracts.errors import ConfigurationError
from services.gateway.settings import GatewaySettings
from services.toolhost.workspace import place_of, workspace_key

_NAME_CHARS_MAX = 40
_HASH_CHARS = 8
_UNSAFE = re.compile(r"[^A-Za-z0-9_]+")


class Chosen(NamedTuple):
    """The workspace's name, and what its person should know before the run begins (nothing: empty)."""

    name: str
    note: str


async def choose(client: PerdureClient, given: str, known: Mapping[str, str], *, here: bool) -> Chosen:
    """What `--workspace` means; `here`: the server runs on this machine. Raises `ConfigurationError`."""
    if is_directory(given):
        if not here:
            raise ConfigurationError(
                "--workspace takes a directory only for a server on this machine; give a workspace's name instead"
            )
        tenant = await _tenant(client, known)
        name = link(Path(given), root_of(known), tenant=tenant)
        return Chosen(name, f"the agent edits {printable(str(Path(given).resolve()))} itself")
    if await _exists(client, given, known, here=here):
        return Chosen(given, "")
    new = "new empty workspace" if here else "if it is new, an empty workspace"
    return Chosen(given, f"{new} '{printable(given)}'; a directory is written with a slash")


def is_directory(given: str) -> bool:
    """Whether `--workspace` means a directory: it exists, or is written like a path."""
    return Path(given).is_dir() or os.sep in given or given in {".", ".."}


def root_of(environment: Mapping[str, str]) -> Path:
    """The root of all workspaces, as the services compute it."""
    named = environment.get("WORKSPACE_DIR")
    return Path(named) if named else Path(environment.get("PERDURE_DATA") or ".perdure") / "workspaces"


def tenant_of(known: Mapping[str, str]) -> str:
    """Whose secret `PERDURE_TOKEN` is, by the keys of the deployment. Raises `ConfigurationError` where that is unknown."""
    keys = known.get("RUNTIME_API_KEYS_JSON") or ""
    tenants = GatewaySettings.load("gateway", {"RUNTIME_API_KEYS_JSON": keys}).keys
    token = known.get("PERDURE_TOKEN")
    for tenant, secrets in tenants.items():
        if any(secret.get_secret_value() == token for secret in secrets):
            return tenant
    raise ConfigurationError(
        "the server has a folder for each tenant, and nothing here tells which is yours: set RUNTIME_API_KEYS_JSON as "
        "`perdure up` has it and PERDURE_TOKEN to one of its secrets, or give a workspace's name instead of a directory"
    )


def link(directory: Path, root: Path, *, tenant: str | None = None) -> str:
    """Link `directory` into the root, in secure mode into the tenant's folder there; returns the workspace's name.

    Raises `ConfigurationError`.
    """
    target = directory.resolve()
    if not target.is_dir():
        raise ConfigurationError(f"there is no directory {directory}; make it, or give a workspace's name")
    root = root.resolve()
    if not root.parent.is_dir():
        raise ConfigurationError(
            f"there is no data folder {root.parent}; run this where `perdure up` was started, or set PERDURE_DATA as it does"
        )
    if root == target or root.is_relative_to(target):
        raise ConfigurationError(
            f"{directory} holds the data of Perdure itself; start `perdure up --data` outside of it"
        )
    name = workspace_name(target)
    folder = root if tenant is None else root / workspace_key(tenant)
    entry = folder / name
    try:
        folder.mkdir(parents=True, exist_ok=True)
        entry.symlink_to(target, target_is_directory=True)
    except FileExistsError:
        if entry.resolve() != target:
            raise ConfigurationError(f"{entry} exists and is not a link to {target}; remove it") from None
    except OSError as error:
        raise ConfigurationError(f"cannot link {target} into {folder}: {error.strerror}") from error
    return name


def workspace_name(target: Path) -> str:
    """`<basename>-<hash of the path>`, safe as a file name and as a workspace's name."""
    base = _UNSAFE.sub("_", target.name).strip("_")[:_NAME_CHARS_MAX] or "directory"
    return f"{base}-{hashlib.sha256(os.fsencode(target)).hexdigest()[:_HASH_CHARS]}"


async def _tenant(client: PerdureClient, known: Mapping[str, str]) -> str | None:
    """The tenant whose folder counts; `None` in trusted-local mode."""
    return tenant_of(known) if (await client.health()).secure else None


async def _exists(client: PerdureClient, name: str, known: Mapping[str, str], *, here: bool) -> bool:
    """Whether the workspace is seen to exist. What cannot be looked at counts as new: a remark too many harms nobody."""
    if not here:
        return False
    try:
        tenant = await _tenant(client, known)
    except ConfigurationError:
        return False
    return place_of(root_of(known), name, tenant=tenant).directory.exists()
