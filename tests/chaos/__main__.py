"""`python -m tests.chaos --minutes M [--seed N] [--nodes 1] [--runs 50] [--folder F]`: exit code 1 if anything is found."""

from __future__ import annotations

import argparse
import secrets
import sys
import tempfile
from pathlib import Path

import uvloop

from tests.chaos.drive import Chaos, drive


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos")
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--nodes", type=int, choices=(1, 3), default=3)
    parser.add_argument("--runs", type=int, default=50)
    parser.add_argument("--folder", type=Path, default=None)
    options = parser.parse_args()
    seed = options.seed if options.seed is not None else secrets.randbelow(1_000_000)
    chaos = Chaos(options.minutes * 60, seed, options.nodes, options.runs)
    folder = options.folder or Path(tempfile.mkdtemp(prefix="perdure-chaos-"))
    folder.mkdir(parents=True, exist_ok=True)
    sys.stdout.write(f"{chaos}\nlog: {folder / 'perdure.log'}\n")
    sys.stdout.flush()
    report = uvloop.run(drive(folder, chaos))
    sys.stdout.write(f"{report.table}\n")
    return 1 if report.findings else 0


if __name__ == "__main__":
    sys.exit(main())
