"""The work that is measured: what the scripted model says, and the goals that ask for it.

Invariant: the plain loop and Perdure get the same conversation from the same server.
"""

import msgspec

from deploy.dev.model_script import Answer, Conversation, Script, ScriptedCall
from libs.contracts.http import LimitsIn, TaskCreate

# About a line of a log: what a small tool gives and takes.
ECHO_TEXT = "The quick brown fox jumps over the lazy dog, and then it writes down what it saw. " * 2
FINAL_TEXT = "All was echoed."
# Runs before the measured ones: connections, lazy imports, caches.
WARM_UPS = 1


def marker(iterations: int) -> str:
    """What names a conversation with this many echoes before its end."""
    return f"[echo {iterations}]"


def goal(iterations: int) -> str:
    return f"Echo one line after the other, then say that it was done. {marker(iterations)}"


def script(lengths: set[int]) -> bytes:
    """The model's script: one conversation for each number of iterations, answered without delay."""
    # Another line each time: a run that sees the same again and again is stopped.
    calls = [
        ScriptedCall(name="echo", arguments={"text": f"{ECHO_TEXT} {number}"})
        for number in range(max(lengths, default=0))
    ]
    conversations = [
        Conversation(
            marker=marker(length),
            turns=[*(Answer(calls=[call]) for call in calls[:length]), Answer(text=FINAL_TEXT)],
        )
        for length in sorted(lengths)
    ]
    return msgspec.json.encode(Script(conversations=conversations))


def task(iterations: int, *, start: bool = True) -> bytes:
    """The body of the POST that creates a run of this length."""
    wanted = TaskCreate(
        goal=goal(iterations),
        auto_start=start,
        tools=["echo"],
        limits=LimitsIn(max_iterations=iterations + 10),
    )
    return wanted.model_dump_json(exclude_unset=True).encode()
