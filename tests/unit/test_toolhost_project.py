"""The project's own instructions, whatever is found under their name."""

import hashlib
import os
from pathlib import Path

import pytest

from libs.contracts.values import ProjectInstructions
from services.toolhost.guard import WorkspaceGuard
from services.toolhost.project import FILE, FILE_BYTES_MAX, TEXT_CHARS_MAX, instructions


def found(root: Path, data: bytes | None = None) -> ProjectInstructions | None:
    if data is not None:
        (root / FILE).write_bytes(data)
    with WorkspaceGuard(root) as guard:
        return instructions(guard)


@pytest.mark.parametrize("data", [None, b"", b" \r\n\t", b"\xef\xbb\xbf\n"])
def test_a_project_without_a_word_has_no_instructions(tmp_path: Path, data: bytes | None) -> None:
    assert found(tmp_path, data) is None


def test_the_text_comes_with_the_digest_of_the_file_as_it_is(tmp_path: Path) -> None:
    data = b"\xef\xbb\xbf# Rules\r\n\r\nTabs. \xff\r\n"
    expected = hashlib.sha256(data).hexdigest()
    assert found(tmp_path, data) == ProjectInstructions(
        path=FILE, text="# Rules\n\nTabs. \ufffd", sha256=expected
    )


def test_what_a_person_would_not_see_is_made_visible(tmp_path: Path) -> None:
    there = found(tmp_path, "Be kind.\u202e\U000e0041\x1b[2J\tOk.".encode())
    assert there is not None
    assert there.text == "Be kind.\\u202e\\udb40\\udc41\\u001b[2J\tOk."


def test_a_long_text_is_clipped_and_says_so(tmp_path: Path) -> None:
    there = found(tmp_path, b"x" * (TEXT_CHARS_MAX + 1))
    assert there is not None
    assert (len(there.text), there.clipped) == (TEXT_CHARS_MAX, True)
    there = found(tmp_path, b"x" * TEXT_CHARS_MAX)
    assert there is not None
    assert not there.clipped


@pytest.mark.parametrize("data", [b"\x7fELF\0\0", "UTF-16".encode("utf-16"), b"x" * (FILE_BYTES_MAX + 1)])
def test_what_is_no_text_is_reported_and_not_used(tmp_path: Path, data: bytes) -> None:
    there = found(tmp_path, data)
    assert there is not None
    assert there.problem
    assert not there.text


@pytest.mark.parametrize("kind", ["link", "pipe", "folder"])
def test_what_is_no_file_is_reported_and_neither_followed_nor_waited_for(tmp_path: Path, kind: str) -> None:
    root, secret = tmp_path / "root", tmp_path / "secret"
    root.mkdir()
    secret.write_text("secret")
    match kind:
        case "link":
            (root / FILE).symlink_to(secret)
        case "pipe":
            os.mkfifo(root / FILE)
        case _:
            (root / FILE).mkdir()
    there = found(root)
    assert there is not None
    assert there.problem
    assert there.text == ""
