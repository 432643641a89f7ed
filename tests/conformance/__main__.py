"""The client scenarios of the public MCP conformance suite (npm `@modelcontextprotocol/conformance`), as a table.

Run as `make conformance` (`ARGS="--only tools_call"`), where npm and its registry can be reached; the suite and the node that
it needs go into a folder that is removed again. Ends with 1 when a scenario that is known to pass does not.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

PACKAGE = "@modelcontextprotocol/conformance"
# The suite's newest release knows the protocols before 2026-07-28; those since then are in its previews.
RELEASE, PREVIEW = "0.1.16", "0.2.0-alpha.12"
NODE = "node@22"
KNOWN_TO_PASS = {
    RELEASE: {"initialize", "tools_call", "sse-retry"},
    PREVIEW: {
        "initialize",
        "tools_call",
        "sse-retry",
        "request-metadata",
        "http-standard-headers",
        "http-custom-headers",
        "http-invalid-tool-headers",
        "json-schema-ref-no-deref",
    },
}
_SCENARIO = re.compile(r"^\s*- (\S+) \[")
_RESULT = re.compile(r"Passed: (\d+)/(\d+)")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="scenarios whose name holds this")
    only = str(parser.parse_args().only)
    npm = shutil.which("npm")
    if npm is None:
        sys.stderr.write("conformance: there is no npm on PATH (apt-get install nodejs npm)\n")
        return 2
    lost: list[str] = []
    for version in (RELEASE, PREVIEW):
        with tempfile.TemporaryDirectory() as folder:
            wanted = [f"{PACKAGE}@{version}", NODE]
            subprocess.run([npm, "install", "--silent", "--prefix", folder, *wanted], check=True)
            lost += run(Path(folder), version, only)
    for scenario in lost:
        sys.stderr.write(f"conformance: {scenario} used to pass\n")
    return 1 if lost else 0


def run(folder: Path, version: str, only: str) -> list[str]:
    """Every client scenario of one version; those that used to pass and did not."""
    sys.stdout.write(f"\n{PACKAGE} {version}\n\n| scenario | checks | |\n|---|---|---|\n")
    lost: list[str] = []
    for scenario in scenarios(folder):
        if only in scenario:
            passed, of, whole = result(folder, scenario)
            verdict = "passes" if whole else "fails" if of else "no checks"
            sys.stdout.write(f"| {scenario} | {passed} of {of} | {verdict} |\n")
            sys.stdout.flush()
            if not whole and scenario in KNOWN_TO_PASS[version]:
                lost.append(f"{scenario} ({version})")
    return lost


def scenarios(folder: Path) -> list[str]:
    listed = suite(folder, "list").partition("Client scenarios")[2].partition("\n\n")[0]
    return [match[1] for line in listed.splitlines() if (match := _SCENARIO.match(line))]


def result(folder: Path, scenario: str) -> tuple[int, int, bool]:
    """The checks that passed, how many there are, and whether the suite is content; without checks nobody is."""
    command = f"{sys.executable} -m tests.conformance.mcp_client"
    out = ("-o", str(folder / "results"))
    said = suite(folder, "client", "--command", command, "--scenario", scenario, *out)
    found = _RESULT.search(said)
    passed, of = (int(found[1]), int(found[2])) if found else (0, 0)
    return passed, of, of > 0 and "OVERALL: PASSED" in said


def suite(folder: Path, *words: str) -> str:
    programs = folder / "node_modules" / ".bin"
    environment = {**os.environ, "PATH": f"{programs}:{os.environ.get('PATH', os.defpath)}"}
    ran = subprocess.run(
        [programs / "node", programs / "conformance", *words],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        timeout=300,
    )
    return ran.stdout


if __name__ == "__main__":
    sys.exit(main())
