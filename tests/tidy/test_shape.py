"""A file fits one sitting, a function one screen, and every service reads in the same order."""

from __future__ import annotations

import ast
import builtins
from collections.abc import Iterator

from tests.tidy.source import ROOT, Module, expect_none, modules, parse

FILE_LINES_MAX = 400
FUNCTION_LINES_MAX = 60
INHERITANCE_DEPTH_MAX = 2
EMPTY_NAMES = {"base", "common", "helper", "helpers", "manager", "misc", "util", "utils"}
SERVICE_FILES = ("__init__.py", "__main__.py", "settings.py", "app.py")
SERVICES = ("executor", "gateway", "scheduler", "toolhost", "verifier")


def test_no_file_is_longer_than_one_sitting() -> None:
    lengths = ((module, module.text.count("\n")) for module in modules())
    expect_none(
        (
            module.at(FILE_LINES_MAX, f"the file has {lines} lines")
            for module, lines in lengths
            if lines > FILE_LINES_MAX
        ),
        f"A file has at most {FILE_LINES_MAX} lines; split it along its nouns.",
    )


def test_no_function_is_longer_than_one_screen() -> None:
    expect_none(
        (found for module in modules() for found in long_functions(module)),
        f"A function has at most {FUNCTION_LINES_MAX} lines; name its steps.",
    )


def test_a_long_function_is_found() -> None:
    body = "    pass\n" * FUNCTION_LINES_MAX
    assert len(list(long_functions(parse(f"def f():\n{body}")))) == 1


def test_inheritance_is_at_most_two_deep() -> None:
    expect_none(
        deep_classes(modules()),
        f"Inheritance is at most {INHERITANCE_DEPTH_MAX} deep, exceptions aside; compose instead.",
    )


def test_a_deep_class_is_found_across_modules_but_an_exception_is_not() -> None:
    first = parse("class A: ...\nclass B(A): ...\nclass E(Exception): ...\n", "libs/first.py")
    second = parse(
        "from libs import first as f\nclass C(f.B): ...\n"
        "class F(f.E): ...\nclass G(F): ...\nclass H(G): ...\n",
        "libs/second.py",
    )
    assert [found.split(": ")[0] for found in deep_classes((first, second))] == ["libs/second.py:2"]


def test_every_module_is_named_after_the_noun_it_holds() -> None:
    named = ((module, set(module.name.split(".")) & EMPTY_NAMES) for module in modules())
    expect_none(
        (module.at(1, f"{' and '.join(names)} says nothing") for module, names in named if names),
        "A module is named after the noun it holds.",
    )


def test_every_module_says_what_it_is_for() -> None:
    expect_none(
        (module.at(1, "no docstring") for module in modules() if not ast.get_docstring(module.tree)),
        "A module opens with what it is for and the one invariant it keeps.",
    )


def test_every_service_has_the_same_first_files() -> None:
    expected = [f"services/{service}/{name}" for service in SERVICES for name in SERVICE_FILES]
    expect_none(
        (path for path in expected if not (ROOT / path).is_file()),
        f"Every service has {', '.join(SERVICE_FILES)}; missing:",
    )


def long_functions(module: Module) -> Iterator[str]:
    for function in module.functions():
        lines = (function.end_lineno or function.lineno) - function.lineno + 1
        if lines > FUNCTION_LINES_MAX:
            yield module.at(function.lineno, f"{function.name} has {lines} lines")


def deep_classes(sources: tuple[Module, ...]) -> Iterator[str]:
    bases: dict[str, list[str]] = {}
    places: dict[str, tuple[Module, int]] = {}
    aliases = {f"{module.name}.{name}": full for module in sources for name, full in module.imports.items()}
    for module in sources:
        for node in ast.walk(module.tree):
            if isinstance(node, ast.ClassDef):
                name = f"{module.name}.{node.name}"
                bases[name] = [base_name(module, base) for base in node.bases]
                places[name] = (module, node.lineno)

    def chain(name: str) -> list[str]:
        """The longest line of ancestors, the class itself first; a re-exported name is followed home."""
        home = name
        while home not in bases and home in aliases:
            home = aliases[home]
        lines = [chain(base) for base in bases.get(home, [])]
        return [home, *max(lines, key=len)] if lines else [home]

    for name, (module, line) in places.items():
        ancestors = chain(name)
        ours = [ancestor for ancestor in ancestors if ancestor in bases]
        if len(ours) > INHERITANCE_DEPTH_MAX and not is_exception(ancestors[-1]):
            yield module.at(line, " < ".join(ours))


def base_name(module: Module, base: ast.expr) -> str:
    """A base class in full: through the imports, else of this module, else a builtin."""
    if full := module.dotted(base):
        return full
    plain = ast.unparse(base.value if isinstance(base, ast.Subscript) else base)
    return plain if hasattr(builtins, plain) else f"{module.name}.{plain}"


def is_exception(name: str) -> bool:
    found: object = getattr(builtins, name, None)
    return isinstance(found, type) and issubclass(found, BaseException)
