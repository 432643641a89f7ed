"""Settings of the verifier.

Invariant: what to run stands in the task or with the workspace's host; the verifier itself needs nothing but, for reviews, a
model. Its key is a secret from the moment it is read: it is never logged, stored, or told to the judge.
"""

from functools import cached_property
from typing import Annotated

from pydantic import AliasChoices, Field, SecretStr

from libs.chassis.addresses import Http
from libs.chassis.settings import ServiceSettings, reread
from libs.contracts.errors import ConfigurationError
from libs.policy.redaction import Redaction
from services.verifier.review.asking import Access

# The names of the key, the first before the other.
_KEYS = ("OPENAI_API_KEY", "DASHSCOPE_API_KEY")
# Keys that are still taken out of texts after they were replaced.
_KEYS_REMEMBERED = 8


class VerifierSettings(ServiceSettings):
    """A verifier without a model starts, and verifies all but reviews."""

    api_key: Annotated[SecretStr | None, Field(validation_alias=AliasChoices(*_KEYS))] = None
    base_url: Annotated[
        Http | None, Field(validation_alias=AliasChoices("OPENAI_BASE_URL", "DASHSCOPE_BASE_URL"))
    ] = None
    model_id: Annotated[str | None, Field(alias="MODEL_ID")] = None
    review_model: Annotated[str | None, Field(alias="PERDURE_REVIEW_MODEL")] = None

    @cached_property
    def keys(self) -> list[str]:
        """The keys that were in use, the last one now."""
        return [self.api_key.get_secret_value()] if self.api_key is not None else []

    @property
    def redaction(self) -> Redaction:
        """Takes out all keys that were in use, too."""
        return Redaction(lambda: (*self.secrets, *(key.encode() for key in self.keys)))

    def access(self) -> Access | None:
        """The judge's model, with the key as it is configured now: one that stands in `.env` may be replaced while this
        process runs. `None`: none is configured."""
        model = self.review_model or self.model_id
        if not self.keys or model is None:
            return None
        try:
            found = reread(*_KEYS)
        except (ConfigurationError, OSError, ValueError):
            found = None
        if found is not None and found[0] != self.keys[-1]:
            self.keys[:] = [*self.keys, found[0]][-_KEYS_REMEMBERED:]
        return Access(self.keys[-1], self.base_url, model)
