"""`python -m tests.sim`: seeded schedules, every crash point, planted bugs; prints what does not hold, with its trace.

    python -m tests.sim --seed 17                    that schedule, with its trace if something is found
    python -m tests.sim --schedules 5000             seeds 1 to 5000
    python -m tests.sim --minutes 10 --first 90000   as many as fit
    python -m tests.sim --schedules 5000 --lanes 2   in two processes
    python -m tests.sim --points plain,verify        a crash at every step of these scenarios ("all": of every one)
    python -m tests.sim --freezes plain              a freeze at every step
    python -m tests.sim --troubles plain             an end, a cut, an unknown outcome at every step; each message lost
    python -m tests.sim --schedules 50 --twice       whether each schedule is the same the second time
    python -m tests.sim --weeks 3                    a project that goes on for so long, with daily restarts (0: short days)
    python -m tests.sim --planted all                whether each planted bug is found, and how fast ("quickly": where it
                                                     shows soonest; "seeds": by seeds alone)

Invariant: what is printed with a finding is enough to run that very schedule again.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import multiprocessing
import os
import sys
import time
import warnings
from collections import Counter, deque
from collections.abc import Generator, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor

from tests.sim.ages import aged, paced
from tests.sim.faults import CRASHES, FREEZES, TROUBLES
from tests.sim.scenarios import NAMES
from tests.sim.schedule import Outcome
from tests.sim.search import Case, case_of, outcome_of, points

# So many schedules are given to a process at once, and their garbage is collected at once.
BATCH = 25
# Batches that wait for each process: enough that none is idle, few enough to stop soon.
BATCHES_AHEAD = 2


def main() -> int:
    arguments = _arguments()
    if os.environ.get("PYTHONHASHSEED") != "0":
        # The order of sets of strings belongs to a schedule.
        os.execve(
            sys.executable,
            [sys.executable, "-m", "tests.sim", *sys.argv[1:]],
            {**os.environ, "PYTHONHASHSEED": "0"},
        )
    # What a dead process left behind has last words when it is collected; they are of no interest.
    sys.unraisablehook = lambda _: None
    warnings.simplefilter("ignore", RuntimeWarning)
    gc.collect()
    gc.freeze()
    if arguments.planted:
        from tests.sim.planted import report  # noqa: PLC0415 what is planted wraps the services; only who asks loads it

        return report(arguments.planted)
    if arguments.weeks is not None:
        return _age(arguments.weeks)
    return _search(_cases(arguments), arguments)


def _age(weeks: int) -> int:
    began = time.perf_counter()
    found, told = aged(paced(weeks))
    print(f"{weeks} weeks in {time.perf_counter() - began:.0f} s, {len(found)} findings", *told, sep="\n  ")
    for text in found:
        print(f"  FOUND {text}")
    return 1 if found else 0


def _cases(arguments: argparse.Namespace) -> Iterator[Case]:
    names = tuple(arguments.scenario.split(",")) if arguments.scenario else NAMES
    if arguments.seed is not None:
        yield case_of(arguments.seed, names)
        return
    for option, hows in (
        (arguments.points, CRASHES),
        (arguments.freezes, FREEZES),
        (arguments.troubles, TROUBLES),
    ):
        for name in (NAMES if option == "all" else option.split(",")) if option else ():
            chosen = [how for how in hows if arguments.how in (None, how)]
            for seed in range(arguments.variant, arguments.variant + arguments.variants):
                yield from points(name, chosen, seed=seed)
    if arguments.schedules is not None or arguments.minutes is not None:
        most = arguments.schedules if arguments.schedules is not None else sys.maxsize
        yield from (case_of(seed, names) for seed in itertools.islice(itertools.count(arguments.first), most))


def _search(cases: Iterable[Case], arguments: argparse.Namespace) -> int:
    began = time.perf_counter()
    end = began + arguments.minutes * 60 if arguments.minutes is not None else float("inf")
    counts: Counter[str] = Counter()
    bad: list[str] = []
    for case, outcome in _outcomes(cases, arguments.lanes, twice=arguments.twice):
        counts["schedules"] += 1
        counts["callbacks"] += outcome.callbacks
        counts[case.scenario] += 1
        counts["virtual"] += int(outcome.virtual_s)
        if outcome.findings:
            bad.append(str(case))
            _show(case, outcome.findings, quiet=arguments.quiet or len(bad) > 1)
            if len(bad) >= arguments.findings:
                break
        if time.perf_counter() > end:
            break
    took = time.perf_counter() - began
    print(
        f"{counts['schedules']} schedules in {took:.1f} s ({counts['schedules'] / took * 60:.0f} a minute), "
        f"{counts['virtual'] / 3600:.1f} virtual hours, {len(bad)} with findings"
    )
    print("  " + ", ".join(f"{name} {counts[name]}" for name in NAMES if counts[name]))
    for text in bad:
        print(f"  FOUND in {text}")
    return 1 if bad else 0


def _outcomes(cases: Iterable[Case], lanes: int, *, twice: bool) -> Generator[tuple[Case, Outcome]]:
    """What the cases came to, in their order."""
    rest = iter(cases)
    batches = iter(lambda: list(itertools.islice(rest, BATCH)), [])
    if lanes == 1:
        for batch in batches:
            yield from _done(batch, twice=twice)
        return
    # Forked, so that each has the order of sets, the warnings and the collector that were set up here.
    with ProcessPoolExecutor(lanes, mp_context=multiprocessing.get_context("fork")) as pool:
        ahead = deque[Future[list[tuple[Case, Outcome]]]]()
        try:
            for batch in batches:
                ahead.append(pool.submit(_done, batch, twice=twice))
                if len(ahead) > lanes * BATCHES_AHEAD:
                    yield from ahead.popleft().result()
            while ahead:
                yield from ahead.popleft().result()
        finally:
            pool.shutdown(cancel_futures=True)


def _done(batch: list[Case], *, twice: bool) -> list[tuple[Case, Outcome]]:
    done: list[tuple[Case, Outcome]] = []
    for case in batch:
        outcome = outcome_of(case)
        if twice and outcome_of(case)._replace(trace=[]) != outcome._replace(trace=[]):
            outcome.findings.append("the second run was another one")
        done.append((case, outcome))
    gc.collect()
    return done


def _show(case: Case, findings: list[str], *, quiet: bool) -> None:
    print(f"--- {case}")
    for finding in dict.fromkeys(findings):
        print(f"  {finding}")
    if quiet:
        return
    traced = outcome_of(case, traced=True)
    print("\n".join(traced.trace))
    if traced.findings != findings:
        print(f"THE SECOND RUN FOUND SOMETHING ELSE: {traced.findings}")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.sim", description=(__doc__ or "").partition("\n\n")[0]
    )
    parser.add_argument("--seed", type=int, help="run this schedule only")
    parser.add_argument("--first", type=int, default=1, help="the first seed")
    parser.add_argument("--schedules", type=int, help="how many seeds")
    parser.add_argument("--minutes", type=float, help="stop after so long")
    parser.add_argument("--scenario", help="only these, separated by commas")
    parser.add_argument("--points", help="crash at every step of these scenarios, or of all")
    parser.add_argument("--freezes", help="freeze at every step of these scenarios, or of all")
    parser.add_argument("--troubles", help="any other fault at every step of these scenarios, or of all")
    parser.add_argument(
        "--variants",
        type=int,
        default=1,
        help="seeds for each scenario of --points, --freezes and --troubles",
    )
    parser.add_argument("--variant", type=int, default=0, help="the first of these seeds")
    parser.add_argument("--how", help="only this fault of --points, --freezes and --troubles")
    parser.add_argument("--lanes", type=int, default=1, help="processes that search side by side")
    parser.add_argument("--findings", type=int, default=5, help="stop after so many schedules with findings")
    parser.add_argument("--quiet", action="store_true", help="no trace")
    parser.add_argument("--twice", action="store_true", help="run each schedule twice and compare")
    parser.add_argument("--weeks", type=int, help="a project of so many weeks (0: of eight short days)")
    parser.add_argument("--planted", choices=("all", "quickly", "seeds"), help="look for the planted bugs")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
