"""Variables of the contract that no part of this version reads yet: checked like the others, and said to do nothing.

Invariant: whoever sets one hears at the start that it has no effect; a bad value is refused now, so that it cannot
break the deployment on the day when it gets one. A name leaves this file when something reads it.
"""

from collections.abc import Mapping
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, SecretStr

from libs.chassis.addresses import Http


class Reserved(BaseModel):
    """Their values."""

    model_config = ConfigDict(frozen=True, extra="ignore", hide_input_in_errors=True)

    langfuse_url: Annotated[Http | None, Field(alias="LANGFUSE_BASE_URL")] = None
    langfuse_public_key: Annotated[str | None, Field(alias="LANGFUSE_PUBLIC_KEY")] = None
    langfuse_secret_key: Annotated[SecretStr | None, Field(alias="LANGFUSE_SECRET_KEY")] = None


# Who will read it, and therefore says that it does not: one service, so that a deployment hears it once.
_READERS = {
    "LANGFUSE_BASE_URL": "executor",
    "LANGFUSE_PUBLIC_KEY": "executor",
    "LANGFUSE_SECRET_KEY": "executor",
}


def without_effect(service: str, values: Mapping[str, str]) -> tuple[str, ...]:
    """What is set in vain, as far as `service` has to say it."""
    return tuple(name for name, reader in _READERS.items() if reader == service and values.get(name))
