"""What a long-horizon project is asked to do, and the small values that its log is made of.

Invariant: all of it is bounded, so that a project of any age fits a fold: lists, texts and counts have their limits here,
beside the reason.
"""

from enum import StrEnum
from typing import Literal

import msgspec

from libs.contracts.checks import Check
from libs.contracts.items import ItemMap
from libs.contracts.tasks import LimitOverrides

# A list of more features is a corpus: a fold copies the index of all of them with each event.
FEATURES_MAX = 5_000
# A model that lists fewer has not cut the brief into steps that can be proved one by one.
FEATURES_MIN = 5
# What one handoff may carry into the next context: a page, not a history.
HANDOFF_ITEMS_MAX = 20
HANDOFF_CHARS_MAX = 500
# Decisions and pitfalls outlive the handoff that named them; the latest of them.
REMEMBERED_MAX = 40
# What a retry is told of the failure before it: the end of a traceback, the names of the checks.
ERROR_CHARS_MAX = 4_000
EVIDENCE_LINES_MAX = 20
EVIDENCE_CHARS_MAX = 300

# Sessions of features beside each other: each has a copy of the workspace, and all of them meet in one branch.
LANES_MAX = 16
# Sessions that try to empty the workspace of one lane; then it stays where it is, with all that it holds.
REMOVALS_MAX = 2

ATTEMPTS_DEFAULT = 5
STALL_S_DEFAULT = 300.0
HOOK_TIMEOUT_S_DEFAULT = 60.0
INIT_TIMEOUT_S = 600.0


class FeatureStatus(StrEnum):
    """Where a feature stands. Verified and committed are facts of the verifier and of git."""

    PENDING = "pending"
    IN_PROGRESS = "in_progress"
    VERIFIED = "verified"
    COMMITTED = "committed"
    SKIPPED = "skipped"
    BLOCKED = "blocked"


class Phase(StrEnum):
    """What a project is at (contract, section 6)."""

    INITIALIZE = "initialize"
    IMPLEMENT = "implement"
    VERIFY = "verify"
    COMMIT = "commit"
    DONE = "done"


class ProjectStatus(StrEnum):
    """Whether a project goes on. The state in the headers of its log."""

    ACTIVE = "ACTIVE"
    PAUSED = "PAUSED"
    BLOCKED = "BLOCKED"
    COMPLETED = "COMPLETED"
    CANCELLED = "CANCELLED"


class Outcome(StrEnum):
    """How a session ended. `unfinished`: it was cut off by a budget with nothing against it, and goes on; `abandoned`:
    nobody wants any more what it was for; `removed`: its lane's workspace holds nothing that is not safe elsewhere."""

    COMMITTED = "committed"
    INITIALIZED = "initialized"
    PROVED = "proved"
    UNFINISHED = "unfinished"
    FAILED = "failed"
    REGRESSED = "regressed"
    CANCELLED = "cancelled"
    ABANDONED = "abandoned"
    REMOVED = "removed"


class FeatureSpec(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One feature: what has to be true (`acceptance`), after which others, and how soon (`priority`: lower first)."""

    id: str
    title: str
    acceptance: list[Check]
    description: str = ""
    depends_on: list[str] = []
    priority: int = 100


class Hooks(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Commands of the project around its workspaces, as argv. `after_create` and `before_run` fail closed."""

    after_create: list[str] | None = None
    before_run: list[str] | None = None
    after_run: list[str] | None = None
    before_remove: list[str] | None = None
    timeout_s: float = HOOK_TIMEOUT_S_DEFAULT


class Origin(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What the workspace begins from: a folder that is copied, or a repository that is cloned; else it is empty."""

    seed_dir: str | None = None
    git_url: str | None = None


class ProjectLimits(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Caps of a whole project; reaching one blocks it with a reason, and resuming with a higher one goes on.

    `wall_time_s` counts while the project is active. `stall_s` (0: off) bounds silence of a session. `session` are the
    limits of each run.
    """

    max_sessions: int | None = None
    max_total_tokens: int | None = None
    max_cost_usd: float | None = None
    wall_time_s: float | None = None
    stall_s: float = STALL_S_DEFAULT
    session: LimitOverrides = LimitOverrides()


class ProjectSpec(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What was asked for, as accepted. `leftovers`: what a session leaves uncommitted is kept on a side ref and brought
    back for the next session of the same feature (`keep`), or only kept there for people (`reset`). `map`: many
    items in place of features."""

    name: str
    brief: str
    features: list[FeatureSpec] = []
    workspace: Origin = Origin()
    hooks: Hooks = Hooks()
    verify: list[Check] = []
    init: list[str] | None = None
    limits: ProjectLimits = ProjectLimits()
    max_attempts_per_feature: int = ATTEMPTS_DEFAULT
    concurrency: int = 1
    model: str | None = None
    unattended: bool = False
    leftovers: Literal["keep", "reset"] = "keep"
    metadata: dict[str, str] = {}
    map: ItemMap | None = None


class Handoff(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a session leaves for the next one, which begins with nothing else of it. Bounded by `bounded`."""

    done: list[str] = []
    in_progress: list[str] = []
    next: list[str] = []
    decisions: list[str] = []
    pitfalls: list[str] = []
    how_to_verify: list[str] = []


def bounded(handoff: Handoff) -> Handoff:
    """The handoff within its bounds; what does not fit is cut at the end."""
    return Handoff(
        **{
            name: [
                str(item).strip()[:HANDOFF_CHARS_MAX] for item in getattr(handoff, name) if str(item).strip()
            ][:HANDOFF_ITEMS_MAX]
            for name in Handoff.__struct_fields__
        }
    )


def remembered(former: Handoff, latest: Handoff | None) -> Handoff:
    """The latest handoff, with the decisions and pitfalls of earlier ones: a session that forgets them loses nothing."""
    if latest is None:
        return former
    latest = bounded(latest)
    return msgspec.structs.replace(
        latest,
        decisions=_latest(former.decisions, latest.decisions),
        pitfalls=_latest(former.pitfalls, latest.pitfalls),
        how_to_verify=latest.how_to_verify or former.how_to_verify,
    )


def together(former: Handoff, latest: Handoff) -> Handoff:
    """The latest handoff and one that a session beside it left meanwhile: neither has seen what the other one did."""
    return msgspec.structs.replace(
        latest,
        done=_both(former.done, latest.done),
        in_progress=_both(former.in_progress, latest.in_progress),
        next=_both(former.next, latest.next),
    )


def _both(former: list[str], latest: list[str]) -> list[str]:
    kept = [item for item in former if item not in latest]
    return [*kept, *latest][-HANDOFF_ITEMS_MAX:]


def _latest(former: list[str], latest: list[str]) -> list[str]:
    kept = [item for item in former if item not in latest]
    return [*kept, *latest][-REMEMBERED_MAX:]


class Evidence(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Why a feature is where it is. `digest` is the SHA-256 of the whole verification, which stands in the log of
    `run_id`; `checks` are one line each; `snapshot` is the state of the workspace that was judged; `commit` is git's."""

    run_id: str | None = None
    verdict: str | None = None
    digest: str | None = None
    snapshot: str | None = None
    checks: list[str] = []
    commit: str | None = None
    output: str = ""
