"""The stories that are simulated: tasks, the model's turns, what people do, and how it may end.

Invariant: a scenario says what must hold at its end whatever went wrong on the way.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from libs.contracts.checks import CommandCheck
from libs.contracts.run import RunStatus
from libs.contracts.tasks import LimitOverrides, TaskSpec
from tests.sim.model import Ask, Fault, Turn
from tests.sim.person import Habits

LOOK, COUNT, BUMP, LAUNCH = (Ask(name, {}) for name in ("look", "count", "bump", "launch"))
ENDED = frozenset({RunStatus.COMPLETED})


def write(path: str) -> Ask:
    return Ask("write", {"path": path, "content": path})


class Story(NamedTuple):
    """One run of a scenario. `deadly`: which effect kills its host, before (`False`) or after (`True`) it is done;
    `published`: the task comes over the bus."""

    task: TaskSpec
    habits: Habits = Habits()
    ends: frozenset[RunStatus] = ENDED
    deadly: Mapping[int, bool] = {}
    published: bool = False


class Scenario(NamedTuple):
    name: str
    stories: Sequence[Story]
    turns: Mapping[str, Sequence[Turn]]


def _one(name: str, turns: Sequence[Turn], story: Story | None = None) -> Scenario:
    return Scenario(name, [story or Story(TaskSpec(goal=name))], {name: turns})


_PLAIN: Sequence[Turn] = ((LOOK,), (write("a"),), "Done.")
_CHECK = CommandCheck(argv=["check"])
_QUESTION = Ask("ask_user", {"question": "Which?"})


def scenario(name: str, seed: int = 0) -> Scenario:
    """The scenario of this name; what it leaves open is chosen by the seed."""
    chance = random.Random(f"{seed} {name}")
    match name:
        case "plain":
            return _one(name, _PLAIN)
        case "parallel":
            return _one(name, ((COUNT, write("b"), LOOK, BUMP), (COUNT,), "Done."))
        case "verify":
            story = Story(TaskSpec(goal=name, acceptance=[_CHECK]))
            return _one(name, ((write("a"),), "Done.", (write("fixed"),), "Done again."), story)
        case "retry":
            return _one(name, ((LOOK,), Fault(chance.choice((3.0, 20.0))), (COUNT,), "Done."))
        case "published":
            return _one(name, ((COUNT,), "Done."), Story(TaskSpec(goal=name), published=True))
        case "delegate":
            return _delegate(name, chance)
        case "many":
            return _many(name)
        case _:
            return _with_people(name, chance)


def _with_people(name: str, chance: random.Random) -> Scenario:
    """The scenarios in which somebody does something."""
    task = TaskSpec(goal=name)
    maybe_cancelled = frozenset({RunStatus.COMPLETED, RunStatus.CANCELLED})
    match name:
        case "ask_user":
            return _one(name, ((_QUESTION, LOOK), "Done."))
        case "approval":
            word = chance.choice(("approve", "approve", "reject"))
            return _one(name, ((LAUNCH, LOOK), "Done."), Story(task, Habits(approval=word)))
        case "reconcile":
            word = chance.choice(("accept", "retry", "fail"))
            ends = ENDED | {RunStatus.FAILED} if word == "fail" else ENDED
            deadly = {chance.choice((1, 2)): chance.random() < 0.5}
            story = Story(task, Habits(reconciliation=word), ends, deadly)
            return _one(name, ((COUNT, LOOK), (BUMP,), "Done."), story)
        case "cancel":
            story = Story(task, Habits(cancel_at=chance.randrange(1, 20)), maybe_cancelled)
            return _one(name, ((COUNT, LOOK), (write("a"), BUMP), "Done."), story)
        case "pause":
            story = Story(task, Habits(pause_at=chance.randrange(1, 16)))
            return _one(name, ((COUNT,), (write("a"),), (LOOK,), "Done."), story)
        case "message":
            return _one(name, _PLAIN, Story(task, Habits(message_at=chance.randrange(1, 14))))
        case "tickets":
            return _one(name, ((COUNT,), (BUMP,), "Done."), Story(task, Habits(tickets=True)))
        case "deadline":
            task = TaskSpec(goal=name, limits=LimitOverrides(input_timeout_s=chance.choice((5.0, 60.0))))
            story = Story(task, Habits(answers=False), frozenset({RunStatus.FAILED}))
            return _one(name, ((LOOK,), (_QUESTION,), "Done."), story)
        case "delete":
            habits = Habits(delete=True, cancel_at=chance.choice((None, 3, 9)))
            return _one(name, ((COUNT,), (BUMP, LOOK), "Done."), Story(task, habits, maybe_cancelled))
        case _:
            raise LookupError(f"there is no scenario {name!r}; there are: {', '.join(NAMES)}")


def _delegate(name: str, chance: random.Random) -> Scenario:
    children = (Ask("delegate", {"goal": "child one"}), Ask("delegate", {"goal": "child two"}))
    turns: dict[str, Sequence[Turn]] = {
        name: (children, (write("p"),), "Done."),
        "child one": ((COUNT,), "One."),
        "child two": ((write("two"),), "Two."),
    }
    cancelled = chance.random() < 0.2
    story = Story(
        TaskSpec(goal=name),
        Habits(cancel_at=chance.randrange(6, 20) if cancelled else None),
        ENDED | {RunStatus.CANCELLED} if cancelled else ENDED,
    )
    return Scenario(name, [story], turns)


def _many(name: str) -> Scenario:
    """Three runs in one workspace."""
    parts = [scenario(part) for part in ("plain", "parallel", "verify")]
    stories = [
        story._replace(
            task=TaskSpec(goal=story.task.goal, workspace="shared", acceptance=story.task.acceptance)
        )
        for part in parts
        for story in part.stories
    ]
    return Scenario(name, stories, {goal: turns for part in parts for goal, turns in part.turns.items()})


NAMES = (
    "plain",
    "parallel",
    "ask_user",
    "approval",
    "reconcile",
    "cancel",
    "verify",
    "retry",
    "pause",
    "message",
    "tickets",
    "published",
    "delegate",
    "deadline",
    "delete",
    "many",
)
