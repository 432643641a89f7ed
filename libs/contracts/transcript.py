"""The conversation between the model and the world, as the log tells it.

Invariant: the transcript holds what happened, in order; of an item that left the context its beginning, of every other
one all (the log keeps all of everything). The outbound copy for a provider is made from it by the executor's sanitiser
and never written back.
"""

from typing import Literal, cast

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
    """The result of one call. `light`: only the beginning of the output stands here; all of it is in the event with
    this sequence."""

    call_id: str
    name: str
    ok: bool
    output: str
    sequence: int = 0
    light: bool = False


Item = UserItem | AssistantItem | ToolItem

# What of a text stays when it left the context: as much as a reminder of a call shows.
LIGHT_CHARS = 200
# The latest turns stay whole whatever left: repetition is told from them.
WHOLE_TURNS = 8


def lightened(items: tuple[Item, ...], light: int, left: int) -> tuple[tuple[Item, ...], int]:
    """The transcript once its first `left` items have left the context, and how many of them are light now; `light`
    were before. Only their beginnings stay, so that a run takes as much memory as its context and not as its log."""
    turns = 0
    upto = len(items)
    while upto > light and turns < WHOLE_TURNS:
        upto -= 1
        turns += isinstance(items[upto], AssistantItem)
    upto = max(light, min(left, upto))
    return (*items[:light], *(_light(item) for item in items[light:upto]), *items[upto:]), upto


def _light(item: Item) -> Item:
    match item:
        case ToolItem() if len(item.output) > LIGHT_CHARS:
            return msgspec.structs.replace(item, output=item.output[:LIGHT_CHARS], light=True)
        case AssistantItem():
            calls = [
                msgspec.structs.replace(
                    call,
                    arguments=cast(dict[str, object] | None, _short(call.arguments)),
                    raw_arguments=None,
                    extra_content=None,
                )
                for call in item.calls
            ]
            # A turn that said something still does.
            content = item.content.strip()[:LIGHT_CHARS]
            return msgspec.structs.replace(item, content=content, reasoning="", calls=calls)
        case _:
            # What people say stays.
            return item


def _short(value: object) -> object:
    """A JSON value with the beginnings of its strings."""
    match value:
        case str():
            return value[:LIGHT_CHARS]
        case dict():
            return {key: _short(entry) for key, entry in cast(dict[str, object], value).items()}
        case list():
            return [_short(entry) for entry in cast(list[object], value)]
        case _:
            return value
