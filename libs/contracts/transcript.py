"""The conversation between the model and the world, as the log tells it.

Invariant: the transcript holds what happened, unabridged and in order; the outbound copy for a provider is made from
it by the executor's sanitiser and never written back.
"""

from typing import Literal

import msgspec

from libs.contracts.values import ModelToolCall


class UserItem(msgspec.Struct, frozen=True, kw_only=True, tag_field="role", tag="user"):
    """Text that reaches the model from outside the conversation. The goal itself stands in the task."""

    text: str
    origin: Literal["steering", "runtime", "verification"]


class AssistantItem(msgspec.Struct, frozen=True, kw_only=True, tag_field="role", tag="assistant"):
    """One turn of the model."""

    iteration: int
    content: str
    calls: list[ModelToolCall]
    finish_reason: str
    reasoning: str = ""


class ToolItem(msgspec.Struct, frozen=True, kw_only=True, tag_field="role", tag="tool"):
    """The result of one call."""

    call_id: str
    name: str
    ok: bool
    output: str


Item = UserItem | AssistantItem | ToolItem
