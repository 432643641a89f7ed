"""What a service imports is what its extra installs: an image of one service holds nothing else."""

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, packages_distributions, requires
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[2]
OURS = "import services.{0}.app, sys; print(*(m.__file__ for n, m in sys.modules.items() if n[:5] in ('libs.', 'servi')))"


@pytest.mark.parametrize("service", ["gateway", "scheduler", "executor", "toolhost", "verifier"])
def test_a_service_starts_with_what_its_extra_installs(service: str) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    installed = _with_their_own(project["dependencies"] + project["optional-dependencies"][service])
    argv = [sys.executable, "-c", OURS.format(service)]
    loaded = subprocess.run(argv, cwd=ROOT, check=True, capture_output=True, text=True).stdout.split()
    known = packages_distributions()
    missing = {
        (module, file)
        for file in loaded
        for module in _imported_at_once(Path(file))
        if module in known and not installed & {_normal(one) for one in known[module]}
    }
    assert missing == set(), f"name these in the extra of {service}, or import them where they are needed"


def _imported_at_once(file: Path) -> set[str]:
    """The packages of others that a file cannot be imported without."""
    found: set[str] = set()
    for node in ast.parse(file.read_bytes()).body:
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            found.add(node.module.partition(".")[0])
    return found - {"libs", "services"}


def _with_their_own(requirements: Iterable[str]) -> set[str]:
    """The distributions that come with these requirements."""
    found: set[str] = set()
    left = [Requirement(one) for one in requirements]
    while left:
        wanted = left.pop()
        name = _normal(wanted.name)
        if name in found:
            continue
        found.add(name)
        try:
            more = [Requirement(one) for one in requires(name) or ()]
        except PackageNotFoundError:
            continue  # Of another platform, or an extra that nothing here imports.
        extras = wanted.extras or {""}
        left += [
            one
            for one in more
            if one.marker is None or any(one.marker.evaluate({"extra": extra}) for extra in extras)
        ]
    return found


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
