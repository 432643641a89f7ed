"""Path patterns mean what people expect of them."""

import pytest

from libs.policy.globs import matches


@pytest.mark.parametrize(
    "path,pattern",
    [
        ("a.py", "*.py"),
        ("deep/er/a.py", "*.py"),
        ("src/a.py", "src/*.py"),
        ("src/a/b/c.py", "src/**"),
        ("src/a/b/c.py", "src/**/c.py"),
        ("src/c.py", "src/**/c.py"),
        ("x/tests/a/b.txt", "**/tests/**"),
        ("tests/b.txt", "**/tests/**"),
        ("tests/b.txt", "tests/"),
        ("tests/b.txt", "./tests/b.txt"),
        ("a1.txt", "a?.txt"),
        ("a1.txt", "a[0-9].txt"),
        ("ab.txt", "a[!0-9].txt"),
        ("odd[.txt", "odd[.txt"),
    ],
)
def test_a_pattern_matches(path: str, pattern: str) -> None:
    assert matches(path, pattern)


@pytest.mark.parametrize(
    "path,pattern",
    [
        ("src/deep/a.py", "src/*.py"),
        ("other/src/a.py", "src/*.py"),
        ("a.pyc", "*.py"),
        ("mytests/b.txt", "**/tests/**"),
        ("a/1.txt", "a?1.txt"),
        ("z", "[z-a]"),
    ],
)
def test_a_pattern_does_not_match(path: str, pattern: str) -> None:
    assert not matches(path, pattern)
