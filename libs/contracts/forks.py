"""What the API takes to make a run of a run."""

from typing import Annotated, Literal

from pydantic import ConfigDict, Field

from libs.contracts.bodies import Brief, Request


class Fork(Request):
    """The body of `POST /api/runs/{id}/fork`: a new run that shares the log up to there, perhaps with another goal."""

    after_sequence: Annotated[int, Field(ge=1, le=2**53)]
    goal: Brief | None = None


class Retry(Request):
    """The body of `POST /api/runs/{id}/retry`: the task from its start, or from where its workspace was kept last."""

    model_config = ConfigDict(validate_by_name=False, validate_by_alias=True)

    origin: Annotated[Literal["start", "last_checkpoint"], Field(alias="from")] = "start"
