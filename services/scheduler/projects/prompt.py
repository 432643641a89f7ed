"""What the agent of a session is told: everything, because it begins with nothing else. Pure.

Invariant: the goal of a retry names the attempt, the last error and its evidence; what earlier sessions decided is in
it; nothing of a transcript is.
"""

import msgspec

from libs.contracts.checks import Check
from libs.contracts.progress import handoff_text
from libs.contracts.project import Feature, ProjectState, Work
from libs.contracts.projects import FEATURES_MIN, FeatureStatus
from libs.contracts.sessions import SessionKind, Stage

# Of the brief, in each session; a longer one belongs into a file of the workspace.
BRIEF_CHARS_MAX = 20_000
# Features that are named beside the one that is worked on.
NAMED_MAX = 40
ERROR_CHARS_MAX = 4_000

INSTRUCTIONS = """\
You work on one session of a long project. Other sessions came before you and will come after you; none of them sees what \
you see now, and you see nothing of theirs but this message and the workspace.
- Do what this session is for, and nothing else: later sessions do the rest.
- The runtime verifies and commits what you did. Do not commit, do not change the branch, and leave nothing half done: \
what cannot be verified is taken out of the tree again.
- `progress.md` and `features.json` are written by the runtime; read them, do not change them.
- Before you finish call `write_handoff`: what is done, what comes next, what you decided and why, what to beware of, and \
how to see that it works."""

_INITIALIZE = """\
This is the first session. Look at the workspace, then cut the brief into features that can be built and proved one after \
the other, and write all of them with one call of `write_features` (at least {least}).
- Each feature is small enough for one session and useful by itself; name what it depends on.
- Its acceptance proves it the way a user would see it: a command that exits with 0, a file with its contents. Every \
feature has a check of its own that fails as long as the feature is not there.
- Build none of them now. You may add what all of them need: the skeleton of the project, a README, the configuration of \
the tests.
Then call `write_handoff` and finish."""

_FEATURE = """\
Build this one feature, so that its acceptance and the project's checks pass in a clean checkout of the workspace:

{feature}

Features that are committed already must keep working. If you find that the list lacks something, add it with \
`write_features`; what is listed stays as it is."""


def goal_of(state: ProjectState, work: Work) -> str:
    """The goal of the agent's run."""
    parts = [
        f"Project: {state.spec.name}",
        f"The brief:\n{_cut(state.spec.brief, BRIEF_CHARS_MAX)}",
        _task(state, work),
        *_trouble(state, work),
        *_surroundings(state, work),
    ]
    told = handoff_text(state.handoff)
    if told:
        parts.append(f"What the sessions before left for you:\n\n{told}")
    return "\n\n".join(parts)


def _task(state: ProjectState, work: Work) -> str:
    if work.kind is SessionKind.INITIALIZE:
        return _INITIALIZE.format(least=FEATURES_MIN)
    assert work.feature_id is not None
    return _FEATURE.format(feature=_described(state.features[work.feature_id]))


def _described(feature: Feature) -> str:
    spec = feature.spec
    checks = "\n".join(f"- {_check(check)}" for check in spec.acceptance)
    description = f"\n{spec.description}" if spec.description else ""
    return f"{spec.id}: {spec.title}{description}\nAcceptance:\n{checks}"


def _check(check: Check) -> str:
    return msgspec.json.encode(check).decode()


def _trouble(state: ProjectState, work: Work) -> list[str]:
    """What went wrong before: the same prompt again would fail the same way."""
    parts: list[str] = []
    feature = state.features.get(work.feature_id or "")
    error = feature.last_error if feature is not None else state.last_error
    if work.attempt > 1 or (feature is not None and feature.front):
        kind = (
            "It was committed before and broke"
            if feature is not None and feature.front
            else "It was tried before"
        )
        parts.append(
            f"This is attempt {work.attempt}. {kind}. The last error and its evidence:\n"
            f"{_cut(error or 'none was recorded', ERROR_CHARS_MAX)}"
        )
    if state.problems:
        listed = "\n".join(f"- {problem}" for problem in state.problems)
        parts.append(f"The list of features that was proposed last was not taken over:\n{listed}")
    health = work.ends.get(Stage.HEALTH)
    if health is not None and health.evidence is not None and health.evidence.output:
        parts.append(
            "The environment was looked at before you began, and this is not in order; see to it first where it is in "
            f"your way:\n{_cut(health.evidence.output, ERROR_CHARS_MAX)}"
        )
    return parts


def _surroundings(state: ProjectState, work: Work) -> list[str]:
    parts: list[str] = []
    committed = [feature for feature in state.features.values() if feature.state is FeatureStatus.COMMITTED]
    if committed:
        parts.append(f"Committed so far ({len(committed)}):\n{_named(committed[-NAMED_MAX:])}")
    later = [
        feature
        for feature in state.features.values()
        if feature.state is FeatureStatus.PENDING
        and all(feature.id != other.feature_id for other in state.works.values())
    ]
    if later:
        parts.append(f"For later sessions ({len(later)}):\n{_named(later[:NAMED_MAX])}")
    beside = [
        state.features[other.feature_id]
        for other in state.works.values()
        if other.feature_id is not None and other.feature_id != work.feature_id
    ]
    if beside:
        parts.append(
            f"Others build these at this moment, each in a copy of its own; leave them alone:\n{_named(beside)}"
        )
    if state.spec.verify and work.kind is SessionKind.FEATURE:
        checks = "\n".join(f"- {_check(check)}" for check in state.spec.verify)
        parts.append(f"The project's own checks, which must pass too:\n{checks}")
    if state.spec.init:
        parts.append(f"The environment is set up with: {' '.join(state.spec.init)}")
    return parts


def _named(features: list[Feature]) -> str:
    return "\n".join(f"- {feature.id}: {feature.spec.title}" for feature in features)


def _cut(text: str, chars_max: int) -> str:
    return (
        text
        if len(text) <= chars_max
        else f"{text[:chars_max]}\n[cut: {len(text) - chars_max} characters more]"
    )
