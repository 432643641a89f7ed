"""Completion: what a shell offers is what the parser takes."""

from __future__ import annotations

import shlex
import shutil
import subprocess

import pytest

from deploy.cli.__main__ import parser
from deploy.cli.completion import SHELLS, script


def _offered(line: str) -> set[str]:
    """What bash offers at the end of a line."""
    words = line.split(" ")
    asked = (
        f"{script('bash', parser())}\nCOMP_WORDS=({' '.join(map(shlex.quote, words))})\nCOMP_CWORD={len(words) - 1}\n"
        "_perdure\nprintf '%s\\n' \"${COMPREPLY[@]}\"\n"
    )
    done = subprocess.run(["bash", "-c", asked], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


@pytest.mark.parametrize(
    "line,some,none",
    [
        ("perdure ", {"up", "run", "runs", "log", "completion"}, {"list", "gateway"}),
        ("perdure ru", {"run", "runs"}, {"up"}),
        ("perdure runs ", {"list", "show", "tail", "fork", "retry", "reply"}, {"up", "verify"}),
        ("perdure runs list --", {"--json", "--status", "--limit"}, {"--workspace"}),
        ("perdure serve ", {"gateway", "verifier"}, {"up"}),
        ("perdure log verify --", {"--json", "--data"}, {"--to"}),
        ("perdure run goal --", {"--workspace", "--accept"}, {"--to"}),
        ("perdure completion ", {"bash", "zsh", "fish"}, {"up"}),
    ],
)
def test_bash_offers_what_the_parser_takes(line: str, some: set[str], none: set[str]) -> None:
    offered = _offered(line)
    assert some <= offered
    assert not none & offered


@pytest.mark.parametrize("shell", SHELLS)
def test_each_script_is_one_that_its_shell_reads(shell: str) -> None:
    program = shutil.which(shell)
    text = script(shell, parser())
    assert "perdure runs list" in text
    if program is None:
        pytest.skip(f"there is no {shell} here")
    done = subprocess.run([program, "-n"], input=text, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
