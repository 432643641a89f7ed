"""What the HTTP API takes about projects: bodies with their bounds, and the list of features as a model writes it.

Invariant: as in `http.py`: what passed here is valid all the way down. A list of features is also valid as a list
(`featurelist.py`), each problem named by its feature.
"""

from collections.abc import Mapping
from typing import Annotated, Literal

import msgspec
from pydantic import AfterValidator, ConfigDict, Field, model_validator

from libs.contracts.bodies import Argv, Brief, Count, Name, Request, Seconds, Text
from libs.contracts.checkhttp import CHECKS_MAX, CheckIn, FileCheckIn, JsonSchemaCheckIn, ReviewCheckIn
from libs.contracts.featurelist import FEATURE_ID, problems
from libs.contracts.http import (
    METADATA_ENTRIES_MAX,
    METADATA_KEY_CHARS_MAX,
    METADATA_VALUE_CHARS_MAX,
    TASK_BYTES_MAX,
    TOOLS_MAX,
    LimitsIn,
    read_body,
)
from libs.contracts.items import (
    CONCURRENCY_MAX,
    FAILED_DEFAULT,
    FAILED_MAX,
    ITEM_CHARS_MAX,
    ITEMS_MAX,
    PLACEHOLDER,
    RETRY_S_DEFAULT,
)
from libs.contracts.projects import (
    ATTEMPTS_DEFAULT,
    FEATURES_MAX,
    HOOK_TIMEOUT_S_DEFAULT,
    LANES_MAX,
    STALL_S_DEFAULT,
    FeatureSpec,
    ProjectLimits,
    ProjectSpec,
)

# More attempts at one feature than this say that a person should look at it.
ATTEMPTS_MAX = 100
# A hook that takes longer is a build, which belongs into `init`.
HOOK_TIMEOUT_S_MAX = 600.0
PRIORITY_MAX = 1_000_000


def _is_an_id(text: str) -> str:
    if FEATURE_ID.fullmatch(text) is None:
        raise ValueError("must be 1 to 64 letters, digits, '.', '_' or '-', and begin with a letter or digit")
    return text


def _is_https(url: str) -> str:
    if not url.startswith("https://") or any(char.isspace() for char in url):
        raise ValueError("must be an https:// address without spaces")
    if "@" in url.removeprefix("https://").partition("/")[0]:
        # It stands in the project's log, and in the goals and errors that are made of it.
        raise ValueError("must have no user or password: everybody who sees the project would read them")
    return url


def _is_absolute(path: str) -> str:
    if not path.startswith("/"):
        raise ValueError("must be an absolute path on the machine of the tool host")
    return path


FeatureId = Annotated[str, AfterValidator(_is_an_id)]


class FeatureIn(Request):
    """One feature: what has to be true (`acceptance`), after which others, and how soon (`priority`: lower first)."""

    id: FeatureId
    title: Name
    acceptance: Annotated[list[CheckIn], Field(min_length=1, max_length=CHECKS_MAX)]
    description: Annotated[Text, Field(max_length=8_000)] = ""
    depends_on: list[FeatureId] = Field(default_factory=list[FeatureId], max_length=64)
    priority: Annotated[int, Field(ge=0, le=PRIORITY_MAX)] = 100

    def spec(self) -> FeatureSpec:
        return msgspec.convert(self.model_dump(), FeatureSpec)


class FeatureListIn(Request):
    """A list of features as the agent of a session writes it."""

    features: Annotated[list[FeatureIn], Field(min_length=1, max_length=FEATURES_MAX)]

    def specs(self) -> list[FeatureSpec]:
        return [feature.spec() for feature in self.features]


class OriginIn(Request):
    """What the workspace begins from; without either it is empty. `seed_dir` is copied, and only for a trusted user."""

    seed_dir: Annotated[Name, AfterValidator(_is_absolute)] | None = None
    git_url: Annotated[Name, AfterValidator(_is_https)] | None = None

    @model_validator(mode="after")
    def _is_one(self) -> "OriginIn":
        if self.seed_dir is not None and self.git_url is not None:
            raise ValueError("name 'seed_dir' or 'git_url', not both")
        return self


class HooksIn(Request):
    """Commands around the workspace. `after_create` and `before_run` fail closed, the others are only recorded."""

    after_create: Argv | None = None
    before_run: Argv | None = None
    after_run: Argv | None = None
    before_remove: Argv | None = None
    timeout_s: Annotated[float, Field(gt=0, le=HOOK_TIMEOUT_S_MAX, allow_inf_nan=False)] = (
        HOOK_TIMEOUT_S_DEFAULT
    )


class ProjectLimitsIn(Request):
    """Caps of the whole project; reaching one blocks it with a reason. `session`: limits of each run."""

    max_sessions: Count | None = None
    max_total_tokens: Count | None = None
    max_cost_usd: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    wall_time_s: Seconds | None = None
    stall_s: Annotated[
        float, Field(allow_inf_nan=False, description="Silence of a session; 0 or less: never.")
    ] = STALL_S_DEFAULT
    session: LimitsIn | None = None

    def limits(self) -> ProjectLimits:
        return msgspec.convert(self.model_dump(exclude_none=True), ProjectLimits)


class MapIn(Request):
    """Many items in place of features: each is one task from the template, with the item in place of `{item}`."""

    items: Annotated[
        list[Annotated[Text, Field(min_length=1, max_length=ITEM_CHARS_MAX)]],
        Field(min_length=1, max_length=ITEMS_MAX),
    ]
    goal: Brief
    acceptance: list[CheckIn] = Field(default_factory=list[CheckIn], max_length=CHECKS_MAX)
    workspace: (
        Annotated[Name, Field(description="Where all runs work; without it each has its own.")] | None
    ) = None
    tools: Annotated[list[Name], Field(max_length=TOOLS_MAX)] | None = None
    retry_s: Annotated[
        float, Field(gt=0, le=300, allow_inf_nan=False, description="Before the first retry; then doubled.")
    ] = RETRY_S_DEFAULT
    max_failed: Annotated[
        int, Field(ge=1, le=FAILED_MAX, description="So many items given up block the project.")
    ] = FAILED_DEFAULT

    @model_validator(mode="after")
    def _is_a_template(self) -> "MapIn":
        if PLACEHOLDER not in self.goal:
            raise ValueError(f"goal: says nothing of the item; write {PLACEHOLDER} where it belongs")
        if len(set(self.items)) < len(self.items):
            raise ValueError("items: one is listed twice; each is done once")
        if self.acceptance and all(isinstance(check, ReviewCheckIn) for check in self.acceptance):
            raise ValueError(
                "acceptance: a review alone proves nothing, so no item would ever be done; add a check"
            )
        files = [check for check in self.acceptance if isinstance(check, FileCheckIn | JsonSchemaCheckIn)]
        if any(PLACEHOLDER in check.path for check in files):
            outside = [item for item in self.items if item.startswith("/") or ".." in item.split("/")]
            if outside:
                raise ValueError(
                    f"items: {outside[0][:80]!r} is no path inside the workspace, as a check wants it"
                )
        return self


class ProjectCreate(Request):
    """The body of `POST /api/projects`."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "name": "shop",
                    "brief": "A small shop: a list of goods, a basket, an order.",
                    "verify": [{"kind": "command", "argv": ["python3", "-m", "unittest"]}],
                }
            ]
        }
    )

    name: Name
    brief: Brief
    features: list[FeatureIn] = Field(default_factory=list[FeatureIn], max_length=FEATURES_MAX)
    workspace: OriginIn | None = None
    hooks: HooksIn | None = None
    verify: list[CheckIn] = Field(default_factory=list[CheckIn], max_length=CHECKS_MAX)
    init: Argv | None = None
    limits: ProjectLimitsIn | None = None
    max_attempts_per_feature: Annotated[int, Field(ge=1, le=ATTEMPTS_MAX)] = ATTEMPTS_DEFAULT
    concurrency: Annotated[
        int,
        Field(
            ge=1,
            le=CONCURRENCY_MAX,
            description=f"Features worked on at once (at most {LANES_MAX}), each in a workspace of its own; or items.",
        ),
    ] = 1
    model: Name | None = None
    unattended: bool = False
    leftovers: Annotated[
        Literal["keep", "reset"],
        Field(
            description="What a session leaves uncommitted goes to a side ref; 'keep' brings it back for the next session "
            "of the same feature when this one was only cut off."
        ),
    ] = "keep"
    metadata: dict[
        Annotated[Text, Field(min_length=1, max_length=METADATA_KEY_CHARS_MAX)],
        Annotated[Text, Field(max_length=METADATA_VALUE_CHARS_MAX)],
    ] = Field(default_factory=dict[str, str], max_length=METADATA_ENTRIES_MAX)

    map: MapIn | None = None

    @model_validator(mode="after")
    def _is_of_one_kind(self) -> "ProjectCreate":
        if self.map is None and self.concurrency > LANES_MAX:
            raise ValueError(
                f"concurrency: at most {LANES_MAX} features are worked on at once; only items are small enough for more"
            )
        given = {
            "features": self.features,
            "workspace": self.workspace,
            "hooks": self.hooks,
            "verify": self.verify,
            "init": self.init,
        }
        named = [name for name, value in given.items() if value]
        if self.map is not None and named:
            raise ValueError(f"{named[0]}: is for projects of features; items have what 'map' says")
        return self

    @model_validator(mode="after")
    def _is_whole(self) -> "ProjectCreate":
        found = problems([feature.spec() for feature in self.features]) if self.features else []
        if found:
            raise ValueError(f"features: {'; '.join(found)}")
        size = len(msgspec.json.encode(self.model_dump(exclude_defaults=True)))
        if size > TASK_BYTES_MAX:
            raise ValueError(
                f"the project takes {size} bytes, at most {TASK_BYTES_MAX} fit; put long texts into the workspace"
            )
        return self

    def spec(self) -> ProjectSpec:
        """The project as its log carries it."""
        return msgspec.convert(self.model_dump(exclude_none=True), ProjectSpec)


class ProjectResume(Request):
    """The body of `POST /api/projects/{id}/resume`: the caps in force from now on, if some are to be other ones."""

    limits: ProjectLimitsIn | None = None
    max_attempts_per_feature: Annotated[int, Field(ge=1, le=ATTEMPTS_MAX)] | None = None


def read_features(given: Mapping[str, object], *, at_least: int) -> tuple[list[FeatureSpec], list[str]]:
    """A list that a model wrote, and what is wrong with it as a list. Raises `ValidationFailed` by field."""
    specs = read_body(FeatureListIn, given).specs()
    return specs, problems(specs, at_least=at_least)
