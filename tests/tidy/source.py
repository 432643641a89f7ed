"""The code base as parsed modules, for rules to walk; names are resolved through imports, so aliases hide nothing."""

from __future__ import annotations

import ast
import functools
import io
import subprocess
import tokenize
from collections.abc import Iterable, Iterator
from pathlib import Path

import grimp
import msgspec
import pytest

ROOT = Path(__file__).resolve().parents[2]
PRODUCT = ("deploy", "libs", "services")
FOLDERS = (*PRODUCT, "tests")

type_of_function = (ast.FunctionDef, ast.AsyncFunctionDef)


class Module(msgspec.Struct, frozen=True, kw_only=True):
    """One Python file: its path below the root, its dotted name, its text and its tree."""

    path: str
    name: str
    text: str
    tree: ast.Module
    imports: dict[str, str]

    def at(self, line: int, message: str) -> str:
        """A violation as an editor can jump to it."""
        return f"{self.path}:{line}: {message}"

    def functions(self) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
        """Every function and method, nested ones too."""
        return (node for node in ast.walk(self.tree) if isinstance(node, type_of_function))

    def dotted(self, node: ast.expr) -> str | None:
        """`datetime.datetime.now` for `dt.now` after `from datetime import datetime as dt`; None for anything else."""
        match node:
            case ast.Name(id=name):
                return self.imports.get(name)
            case ast.Attribute(value=value, attr=attr):
                prefix = self.dotted(value)
                return f"{prefix}.{attr}" if prefix else None
            case ast.Subscript(value=value):
                return self.dotted(value)
            case _:
                return None

    def uses(self) -> Iterator[tuple[str, int]]:
        """Every imported name that is used or imported one by one, in full, with its line."""
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Attribute) and (full := self.dotted(node)):
                yield full, node.lineno
            if isinstance(node, ast.ImportFrom):
                yield from ((f"{node.module}.{alias.name}", node.lineno) for alias in node.names)

    def comments(self) -> Iterator[tuple[int, str]]:
        """Every comment with its line."""
        for token in tokenize.generate_tokens(io.StringIO(self.text).readline):
            if token.type == tokenize.COMMENT:
                yield token.start[0], token.string


def parse(text: str, path: str = "libs/sample.py") -> Module:
    """A module from its text; rules are shown a bad one in their own tests."""
    tree = ast.parse(text)
    name = path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    return Module(path=path, name=name, text=text, tree=tree, imports=imported_names(tree))


def imported_names(tree: ast.Module) -> dict[str, str]:
    """What each imported name stands for, wherever in the module it is imported."""
    names: dict[str, str] = {}
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=aliases):
                for alias in aliases:
                    names[alias.asname or alias.name.split(".")[0]] = (
                        alias.name if alias.asname else alias.name.split(".")[0]
                    )
            case ast.ImportFrom(module=str(module), names=aliases):
                names |= {alias.asname or alias.name: f"{module}.{alias.name}" for alias in aliases}
            case _:
                pass
    return names


@functools.cache
def modules(*folders: str) -> tuple[Module, ...]:
    """Every module below the folders, or of the whole code base."""
    paths = sorted(path for folder in folders or FOLDERS for path in (ROOT / folder).rglob("*.py"))
    return tuple(parse(path.read_text(), path.relative_to(ROOT).as_posix()) for path in paths)


@functools.cache
def import_graph() -> grimp.ImportGraph:
    """Who imports whom, vendors and the standard library included."""
    return grimp.build_graph(*PRODUCT, include_external_packages=True, cache_dir=None)


@functools.cache
def repository_texts() -> tuple[tuple[str, str], ...]:
    """Path and text of every file that is or would be committed; binary files have no text to judge."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, check=True, text=True).stdout
    texts: list[tuple[str, str]] = []
    for path in sorted(set(listed.split("\0")) - {""}):
        file = ROOT / path
        if not file.is_file() or file.is_symlink():
            continue
        try:
            texts.append((path, file.read_bytes().decode()))
        except UnicodeDecodeError:
            continue
    return tuple(texts)


def expect_none(violations: Iterable[str], rule: str) -> None:
    """Fail with the rule and one line for each violation."""
    if found := sorted(violations):
        pytest.fail("\n".join([rule, *found]), pytrace=False)
