"""Which checks prove what in the errand that looks at the environment. Pure.

Invariant: the order of the checks follows from the session's first event, so a result is known by its place to belong to
the project or to a feature, in whichever process the errand was asked for, and whatever a person says meanwhile.
"""

from collections.abc import Sequence

from libs.contracts.checks import Check, DiffCheck, ReviewCheck
from libs.contracts.project import ProjectState, Work
from libs.contracts.sessions import SessionKind


def checks_of(state: ProjectState, work: Work) -> list[Check]:
    """All checks of the errand: the project's own, then those of each feature that is proved again."""
    named = [
        check
        for feature_id in work.reverify
        for check in proved_again(state.features[feature_id].spec.acceptance)
    ]
    return [*_own(state, work), *named]


def proofs(state: ProjectState, work: Work) -> dict[str, slice]:
    """Where the results of each feature stand among those of `checks_of`."""
    places: dict[str, slice] = {}
    at = len(_own(state, work))
    for feature_id in work.reverify:
        count = len(proved_again(state.features[feature_id].spec.acceptance))
        places[feature_id] = slice(at, at + count)
        at += count
    return places


def proved_again(checks: Sequence[Check]) -> list[Check]:
    """The checks that say something of what others have changed since: what one session changed is judged once, with it."""
    return [check for check in checks if not isinstance(check, DiffCheck | ReviewCheck)]


def _own(state: ProjectState, work: Work) -> list[Check]:
    # Before the baseline there is nothing that the project's checks could be held against.
    return proved_again(state.spec.verify) if work.kind is not SessionKind.INITIALIZE else []
