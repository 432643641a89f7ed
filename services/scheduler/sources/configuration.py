"""The sources of a deployment, as its operator says them in `PERDURE_SOURCES`: JSON, or the path of a file that holds it.

    {"inbox": {"kind": "directory", "path": "/srv/tasks"},
     "issues": {"kind": "github", "repository": "acme/shop", "token_file": "/run/secrets/github"}}

Invariant: what is written wrongly keeps the scheduler from starting, and is named. A secret stands in a file of its own, or
in the environment.
"""

from pathlib import Path
from typing import Annotated, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from libs.contracts.ids import is_token

# A file of sources is written by people.
BYTES_MAX = 1 << 20
SOURCES_MAX = 100
Every = Annotated[float, Field(gt=0, le=86_400, allow_inf_nan=False)]


def _token(text: str) -> str:
    if not is_token(text):
        raise ValueError("must match [a-z0-9_-]{1,64}")
    return text


def _address(text: str) -> str:
    parts = urlsplit(text)
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        raise ValueError("must be an address such as https://host/path")
    if parts.port == 0:
        raise ValueError("names a port that is none")
    if "@" in parts.netloc or "?" in text or "#" in text:
        # Whatever goes wrong with a source is logged with its address.
        raise ValueError("must have no user, password, query or fragment; put the secret into token_file")
    return text


Token = Annotated[str, AfterValidator(_token)]
Address = Annotated[str, AfterValidator(_address)]


class DirectorySource(BaseModel):
    """A folder of this machine. `every_s`: how often one looks."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    kind: Literal["directory"]
    path: Annotated[str, Field(min_length=1)]
    tenant: Token = "local"
    every_s: Every = 2.0


class GitHubSource(BaseModel):
    """The issues of a repository (`owner/name`) that have the label. `token_file` holds a token that may read them;
    `workspace`: where all of their runs work (`None`: each in its own)."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    kind: Literal["github"]
    repository: Annotated[str, Field(pattern=r"^[A-Za-z0-9_.-]+/[A-Za-z0-9_.-]+$", max_length=200)]
    label: Annotated[str, Field(min_length=1, max_length=100)] = "perdure"
    token_file: Annotated[str, Field(min_length=1)] | None = None
    url: Address = "https://api.github.com"
    workspace: Annotated[str, Field(min_length=1, max_length=512)] | None = None
    tenant: Token = "local"
    every_s: Every = 30.0


class LinearSource(BaseModel):
    """The issues of Linear that have the label, of the whole workspace or of one `team` (its key, as in `ENG-12`).
    `token_file` holds the key that may read them; without it that is `LINEAR_API_KEY`."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    kind: Literal["linear"]
    team: Annotated[str, Field(min_length=1, max_length=32)] | None = None
    label: Annotated[str, Field(min_length=1, max_length=100)] = "perdure"
    token_file: Annotated[str, Field(min_length=1)] | None = None
    url: Address = "https://api.linear.app/graphql"
    workspace: Annotated[str, Field(min_length=1, max_length=512)] | None = None
    tenant: Token = "local"
    # Its limits count how much is asked for, and unlike GitHub's also what has not changed.
    every_s: Every = 60.0


SourceSpec = DirectorySource | GitHubSource | LinearSource
_Spec = Annotated[SourceSpec, Field(discriminator="kind")]
_Sources = TypeAdapter(Annotated[dict[Token, _Spec], Field(max_length=SOURCES_MAX)])


def parse_sources(text: str) -> dict[str, SourceSpec]:
    """The sources by name. Raises `ValueError` naming what is wrong."""
    try:
        return _Sources.validate_json(text)
    except ValidationError as error:
        found = (
            f"{'.'.join(map(str, item['loc'])) or 'it'}: {item['msg'].removeprefix('Value error, ')}"
            for item in error.errors(include_url=False, include_input=False, include_context=False)
        )
        raise ValueError("; ".join(found)) from error


def read_sources(said: str) -> dict[str, SourceSpec]:
    """What `PERDURE_SOURCES` says. Raises `ValueError`."""
    if said.lstrip().startswith("{"):
        return parse_sources(said)
    path = Path(said)
    try:
        if path.stat().st_size > BYTES_MAX:
            raise ValueError(f"{path} is larger than {BYTES_MAX >> 20} MiB, and no list of sources")
        return parse_sources(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"is neither JSON nor a file that can be read: {path}: {error}") from error
