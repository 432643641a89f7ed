"""Tests are sentences about real peers; they wait for facts with a deadline, never for time to pass."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import PurePosixPath

from tests.tidy.source import Module, expect_none, modules, parse

SLEEPS = {"anyio.sleep", "asyncio.sleep", "time.sleep"}
WORDS_MIN = 3


def test_every_test_is_named_by_a_sentence() -> None:
    expect_none(
        (
            module.at(function.lineno, function.name)
            for module in suite()
            for function in module.functions()
            if function.name.startswith("test_") and len(function.name.split("_")) <= WORDS_MIN
        ),
        f"A test's name says in {WORDS_MIN} words or more what holds.",
    )


def test_every_test_is_a_function() -> None:
    expect_none(
        (
            module.at(node.lineno, node.name)
            for module in suite()
            for node in module.tree.body
            if isinstance(node, ast.ClassDef) and node.name.startswith("Test")
        ),
        "Tests are functions; what they share is a fixture.",
    )


def test_no_test_sleeps_instead_of_waiting() -> None:
    expect_none(
        (found for module in suite() for found in bare_sleeps(module)),
        "A sleep only paces a loop that looks for a fact, under a deadline.",
    )


def test_a_bare_sleep_is_told_from_a_paced_loop() -> None:
    module = parse(
        "import asyncio\n"
        "async def f():\n"
        "    await asyncio.sleep(1)\n"
        "    async with asyncio.timeout(1):\n"
        "        while not done(): await asyncio.sleep(0.01)\n"
        "        await asyncio.sleep(1)\n"
    )
    assert [found.split(":")[1] for found in bare_sleeps(module)] == ["3", "6"]


def test_no_test_patches_the_code_it_tests() -> None:
    expect_none(
        (found for module in modules("tests") for found in patches(module)),
        "A test talks to a real peer or a scripted one; hand it in instead of patching it in.",
    )


def test_a_patch_is_found_in_each_of_its_forms() -> None:
    module = parse("from unittest import mock\ndef test_x(monkeypatch): ...\n")
    assert len(list(patches(module))) == 2


def suite() -> list[Module]:
    return [module for module in modules("tests") if is_test(PurePosixPath(module.path).name)]


def is_test(file_name: str) -> bool:
    """Fakes and benches may sleep: a scripted delay is what they do, not how they wait."""
    return file_name.startswith("test_") or file_name == "conftest.py"


def bare_sleeps(module: Module) -> Iterator[str]:
    paced = {
        id(node)
        for loop in ast.walk(module.tree)
        if isinstance(loop, ast.For | ast.AsyncFor | ast.While)
        for node in ast.walk(loop)
    }
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Call) and module.dotted(node.func) in SLEEPS and id(node) not in paced:
            yield module.at(node.lineno, ast.unparse(node))


def patches(module: Module) -> Iterator[str]:
    for node in ast.walk(module.tree):
        match node:
            case ast.Import(names=names) | ast.ImportFrom(names=names):
                origin = f"{node.module}." if isinstance(node, ast.ImportFrom) else ""
                full = [origin + alias.name for alias in names]
                yield from (module.at(node.lineno, name) for name in full if name.startswith("unittest.mock"))
            case ast.arg(arg="monkeypatch" | "mocker" as name):
                yield module.at(node.lineno, name)
            case _:
                pass
