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
from tests.sim.model import Ask, Fault, Poison, Turn
from tests.sim.person import Habits

LOOK, COUNT, BUMP, LAUNCH = (Ask(name, {}) for name in ("look", "count", "bump", "launch"))
ENDED = frozenset({RunStatus.COMPLETED})
MAYBE_CANCELLED = ENDED | {RunStatus.CANCELLED}


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


# A step in every status that an undisturbed run of `_PLAIN` or `_TWICE` has (`cancel at each step`).
_STEPS = 22
_PLAIN: Sequence[Turn] = ((LOOK,), (write("a"),), "Done.")
_TWICE: Sequence[Turn] = ((COUNT, LOOK), (write("a"), BUMP), "Done.")
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
        case "posts":
            return _one(name, ((COUNT,), "Done."), Story(TaskSpec(goal=name), Habits(posts=3)))
        case "timeout":
            task = TaskSpec(goal=name, limits=LimitOverrides(timeout_s=chance.choice((0.5, 2.0, 4.0))))
            return _one(name, _TWICE, Story(task, ends=ENDED | {RunStatus.FAILED}))
        case "poison":
            turns: dict[str, Sequence[Turn]] = {name: ((COUNT,), Poison()), "beside": _PLAIN}
            stories = [
                Story(TaskSpec(goal=name), ends=frozenset({RunStatus.FAILED})),
                Story(TaskSpec(goal="beside")),
            ]
            return Scenario(name, stories, turns)
        case "many":
            return _many(name)
        case "delegate" | "recall" | "family":
            return _with_children(name, seed, chance)
        case _:
            return _with_people(name, seed, chance)


def _with_people(name: str, seed: int, chance: random.Random) -> Scenario:
    """The scenarios in which somebody does something."""
    task = TaskSpec(goal=name)
    match name:
        case "ask_user":
            return _one(
                name, ((_QUESTION, LOOK), "Done."), Story(task, Habits(rivals=chance.choice((1, 1, 3))))
            )
        case "approval":
            habits = Habits(
                approval=chance.choice(("approve", "approve", "reject")), rivals=chance.choice((1, 1, 3))
            )
            return _one(name, ((LAUNCH, LOOK), "Done."), Story(task, habits))
        case "reconcile":
            word = chance.choice(("accept", "retry", "fail"))
            ends = ENDED | {RunStatus.FAILED} if word == "fail" else ENDED
            deadly = {chance.choice((1, 2)): chance.random() < 0.5}
            story = Story(task, Habits(reconciliation=word), ends, deadly)
            return _one(name, ((COUNT, LOOK), (BUMP,), "Done."), story)
        case "cancel":
            story = Story(task, Habits(cancel_at=1 + seed % _STEPS), MAYBE_CANCELLED)
            return _one(name, _TWICE, story)
        case "give_up":
            # Whatever the run waits for, and perhaps while it is given.
            answers = chance.random() < 0.5
            turns: Sequence[Turn] = chance.choice(
                (
                    ((_QUESTION, LOOK), "Done."),
                    ((LAUNCH,), "Done."),
                    (Fault(3.0), "Done."),
                    ((COUNT, LOOK), "Done."),
                )
            )
            story = Story(
                task, Habits(gives_up=True, answers=answers), MAYBE_CANCELLED, {1: chance.random() < 0.5}
            )
            return _one(name, turns, story)
        case "pause":
            turns = chance.choice(
                (((COUNT,), (write("a"),), (LOOK,), "Done."), ((_QUESTION, COUNT), Fault(3.0), "Done."))
            )
            return _one(name, turns, Story(task, Habits(pause_at=1 + seed % _STEPS)))
        case "message":
            return _one(name, _PLAIN, Story(task, Habits(message_at=1 + seed % _STEPS)))
        case "tickets":
            return _one(name, ((COUNT,), (BUMP,), "Done."), Story(task, Habits(tickets=True)))
        case "deadline":
            return _deadline(name, chance)
        case "delete":
            habits = Habits(delete=True, cancel_at=chance.choice((None, 3, 9)))
            return _one(name, ((COUNT,), (BUMP, LOOK), "Done."), Story(task, habits, MAYBE_CANCELLED))
        case _:
            raise LookupError(f"there is no scenario {name!r}; there are: {', '.join(NAMES)}")


def _deadline(name: str, chance: random.Random) -> Scenario:
    """Nobody answers, or somebody does at the last moment."""
    patience_s = chance.choice((5.0, 60.0))
    task = TaskSpec(goal=name, limits=LimitOverrides(input_timeout_s=patience_s))
    story = Story(task, Habits(answers=False), frozenset({RunStatus.FAILED}))
    if chance.random() < 0.4:
        habits = Habits(answer_after_s=patience_s - chance.uniform(-0.01, 0.02))
        story = Story(task, habits, ENDED | {RunStatus.FAILED})
    return _one(name, ((LOOK,), (_QUESTION,), "Done."), story)


def _with_children(name: str, seed: int, chance: random.Random) -> Scenario:
    """`delegate`: two children; `recall`: somebody cancels the parent or one child; `family`: a grandchild, and a child
    that asks."""
    one, two = Ask("delegate", {"goal": "child one"}), Ask("delegate", {"goal": "child two"})
    turns: dict[str, Sequence[Turn]] = {
        name: ((one, two), (write("p"),), "Done."),
        "child one": ((COUNT,), "One."),
        "child two": ((write("two"),), "Two."),
    }
    story = Story(TaskSpec(goal=name))
    if name == "recall":
        at = 1 + seed % _STEPS
        habits = Habits(cancel_at=at) if chance.random() < 0.7 else Habits(child_cancel_at=1 + at // 2)
        turns["child one"] = ((COUNT, LOOK), (BUMP,), "One.")
        story = Story(TaskSpec(goal=name), habits, MAYBE_CANCELLED)
    elif name == "family":
        turns["child one"] = ((Ask("delegate", {"goal": "grandchild"}), COUNT), "One.")
        turns["child two"] = ((_QUESTION,), "Two.")
        turns["grandchild"] = ((BUMP,), "Mine.")
        pause_at = chance.choice((None, None, 1 + seed % _STEPS))
        story = Story(TaskSpec(goal=name), Habits(pause_at=pause_at))
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
    "give_up",
    "verify",
    "retry",
    "pause",
    "message",
    "tickets",
    "posts",
    "published",
    "delegate",
    "recall",
    "family",
    "deadline",
    "timeout",
    "poison",
    "delete",
    "many",
)
