"""The story of the demo: a project with a bug, a goal, and what the scripted model does about it.

Invariant: the model only says things; that the bug is real, that the edit mends it and that the tests pass is up to
the workspace, the tools and the verifier.
"""

import json
from pathlib import Path

PROJECT = Path(__file__).with_name("demo_project")
WORKSPACE = "shares"
TESTS_COMMAND = ("python3", "-B", "-m", "unittest", "-v")

MARKER = "splitting a bill"
GOAL = "The tests of this project fail: splitting a bill loses cents. Find the bug, repair it, and leave the tests as they are."
ACCEPTANCE = [
    {"kind": "tests"},
    {"kind": "diff", "must_touch": ["split.py"], "must_not_touch": ["test_*.py"]},
]

# The line that is wrong, and what the model puts in its place.
_WRONG = "    return [total_cents // people] * people\n"
_RIGHT = (
    "    share, left_over = divmod(total_cents, people)\n"
    "    return [share + 1] * left_over + [share] * (people - left_over)\n"
)
EDIT = (_WRONG, _RIGHT)
_PLAN = ("Find out which tests fail", "Repair the split", "See the tests pass")
_ANSWER = (
    "I fixed `split.py`: integer division dropped the remainder, so up to people - 1 cents vanished from a bill. "
    "The left-over cents now go to the first people, one each. All four tests pass."
)


def script() -> str:
    """The script for `deploy/dev/model_server.py`."""
    return json.dumps({"conversations": [{"marker": MARKER, "turns": turns()}]})


def turns() -> list[dict[str, object]]:
    """What the model says, turn by turn."""
    return [
        _turn(
            "I look at the project and run its tests first.",
            _todos(0),
            _call("list_files"),
            _call("run_tests"),
        ),
        _turn(
            "A cent is missing.",
            _call("read_file", path="split.py"),
            _call("read_file", path="test_split.py"),
        ),
        _turn(
            "`//` drops the remainder. The first people have to pay one cent more each.",
            _call("edit_file", path="split.py", old_str=EDIT[0], new_str=EDIT[1]),
            _todos(1),
        ),
        _turn("Now the tests again.", _call("run_tests")),
        _turn("", _call("get_git_diff"), _todos(3)),
        _turn(_ANSWER),
    ]


def _turn(text: str, *calls: dict[str, object]) -> dict[str, object]:
    """An answer that comes word by word, so that there is something to stream."""
    words = [word + " " for word in text.split()]
    return {"text": words, "calls": list(calls), "chunk_delay_s": 0.01}


def _call(name: str, **arguments: object) -> dict[str, object]:
    return {"name": name, "arguments": arguments}


def _todos(done: int) -> dict[str, object]:
    """The plan with its first `done` steps completed and the next one in progress."""
    statuses = ["completed"] * done + ["in_progress"] + ["pending"] * len(_PLAN)
    todos = [{"content": step, "status": status} for step, status in zip(_PLAN, statuses, strict=False)]
    return _call("write_todos", todos=todos)
