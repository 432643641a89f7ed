"""Which lists of features are valid, and what a session may change about one. Pure.

Invariant: a list that passed has unique ids, known dependencies without a cycle, and something to prove for each feature;
what is listed already stays as it is, whatever a session proposes: nobody weakens what proves their own work.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from libs.contracts.checks import DiffCheck, ReviewCheck
from libs.contracts.projects import FEATURES_MAX, FeatureSpec

# An id stands in paths, in trailers of commits and in sentences.
FEATURE_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
TITLE_CHARS_MAX = 200
DESCRIPTION_CHARS_MAX = 8_000
# As many problems as a person or a model can mend at once.
PROBLEMS_MAX = 20


def problems(features: Sequence[FeatureSpec], *, at_least: int = 1) -> list[str]:
    """What is wrong with a list, one sentence each, the first ones; nothing when it is valid."""
    found: list[str] = []
    if len(features) < at_least:
        found.append(
            f"the list has {len(features)} features, at least {at_least} are needed: cut them smaller"
        )
    if len(features) > FEATURES_MAX:
        found.append(f"the list has {len(features)} features, at most {FEATURES_MAX} are possible")
        return found
    seen: set[str] = set()
    for feature in features:
        found += _own_problems(feature)
        if feature.id in seen:
            found.append(f"feature {feature.id} is listed twice: give each an id of its own")
        seen.add(feature.id)
    for feature in features:
        unknown = [needed for needed in feature.depends_on if needed not in seen]
        if unknown:
            found.append(f"feature {feature.id} depends on {', '.join(unknown)}, which is not in the list")
    if not found:
        circle = cycle({feature.id: feature.depends_on for feature in features})
        if circle:
            found.append(f"features depend on each other in a circle: {' -> '.join(circle)}")
    return found[:PROBLEMS_MAX]


def _own_problems(feature: FeatureSpec) -> list[str]:
    found: list[str] = []
    if FEATURE_ID.fullmatch(feature.id) is None:
        found.append(f"{feature.id[:80]!r} is no id: 1 to 64 letters, digits, '.', '_' or '-'")
    if not feature.title.strip() or len(feature.title) > TITLE_CHARS_MAX or "\n" in feature.title:
        found.append(
            f"feature {feature.id[:80]} needs a title of one line, up to {TITLE_CHARS_MAX} characters"
        )
    if len(feature.description) > DESCRIPTION_CHARS_MAX:
        found.append(
            f"the description of feature {feature.id[:80]} is over {DESCRIPTION_CHARS_MAX} characters"
        )
    if not feature.acceptance:
        found.append(
            f"feature {feature.id[:80]} has no acceptance: without a check it could never be verified"
        )
    elif all(isinstance(check, DiffCheck | ReviewCheck) for check in feature.acceptance):
        found.append(
            f"the acceptance of feature {feature.id[:80]} only judges what its session changes: add a check of what is "
            "there then, so that it can be proved again later"
        )
    return found


def cycle(needs: Mapping[str, Iterable[str]]) -> list[str]:
    """The ids along one circle, the first one again at the end; empty when there is none. Names that are not keys are
    passed over."""
    done: set[str] = set()
    for start in needs:
        path: list[str] = []
        on_path: set[str] = set()
        walk = [(start, iter(needs[start]))] if start not in done else []
        if walk:
            path.append(start)
            on_path.add(start)
        while walk:
            name, rest = walk[-1]
            following = next((each for each in rest if each in needs and each not in done), None)
            if following is None:
                walk.pop()
                path.pop()
                on_path.discard(name)
                done.add(name)
            elif following in on_path:
                return [*path[path.index(following) :], following]
            else:
                walk.append((following, iter(needs[following])))
                path.append(following)
                on_path.add(following)
    return []


class Amendment(NamedTuple):
    """What a proposed list comes to: features to add, or why nothing of it is taken over."""

    added: list[FeatureSpec]
    problems: list[str]


def amendment(known: Mapping[str, FeatureSpec], proposed: Sequence[FeatureSpec]) -> Amendment:
    """Hold a proposal of a session against the list. It may add features and nothing else; one that changes or leaves out
    what is listed is rolled back as a whole."""
    found: list[str] = []
    by_id = {feature.id: feature for feature in proposed}
    for identifier, feature in known.items():
        given = by_id.get(identifier)
        if given is not None and given != feature:
            found.append(
                f"feature {identifier} was changed: what is listed stays as it is, add a new one instead"
            )
    added = [feature for feature in proposed if feature.id not in known]
    found += problems([*known.values(), *added])
    return Amendment([] if found else added, found[:PROBLEMS_MAX])
