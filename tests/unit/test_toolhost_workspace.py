"""Keys of workspaces: distinct for distinct names, and always one harmless path component."""

import re
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from services.toolhost.workspace import place_of, workspace_key

HARMLESS = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,127}\Z")


def test_a_harmless_name_is_its_own_key() -> None:
    assert workspace_key("my-project_2.1") == "my-project_2.1"


def test_names_that_sanitise_alike_get_different_keys() -> None:
    key = workspace_key("a/b")
    names = [
        "a/b",
        "a_b",
        key,
        "a\\b",
        "é",
        "è",
        "..",
        ".",
        "...",
        "",
        ".hidden",
        "hidden",
        "x" * 300,
        "x" * 301,
    ]
    keys = [workspace_key(name) for name in names]
    assert len(set(keys)) == len(names)
    assert all(HARMLESS.match(key) for key in keys)
    assert re.fullmatch(r"a_b-[0-9a-f]{16}", key)


@given(st.lists(st.text(st.sampled_from("ab/._-é0\ud800")), unique=True, max_size=30))
def test_keys_never_collide(names: list[str]) -> None:
    keys = {workspace_key(name) for name in names}
    assert len(keys) == len(names)
    assert all(HARMLESS.match(key) for key in keys)


def test_the_hidden_repository_lies_beside_the_workspaces_and_tenants_apart() -> None:
    root = Path("/srv/workspaces")
    local = place_of(root, "web")
    assert local.directory == root / "web"
    assert local.git_dir == root / ".perdure-git" / "web.git"
    acme = place_of(root, "../web", tenant="acme")
    assert acme.directory.parent == root / "acme"
    assert acme.git_dir.parent == root / "acme" / ".perdure-git"
