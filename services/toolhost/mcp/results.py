"""What a server answers, as a tool's answer: text for the model, and facts beside it. PURE.

Invariant: nothing is dropped silently: what has no text (a picture, a sound, a file) is named with its kind and size, an
error stays one, and the end of a long text is as near as its beginning. No value of the server's secrets is shown.
"""

from collections.abc import Collection, Sequence
from typing import NamedTuple, assert_never, cast

import msgspec
from mcp_types import (
    AudioContent,
    CallToolResult,
    ContentBlock,
    EmbeddedResource,
    ImageContent,
    ResourceLink,
    TextContent,
    TextResourceContents,
)

from libs.policy.redaction import Redaction
from services.toolhost.output import plain

# What is listed of the parts; all of them are counted.
PARTS_MAX = 20
_LABEL_CHARS_MAX = 500
# Structured content is looked for in texts up to this size.
_COMPARED_CHARS_MAX = 1 << 20
# Beyond what will be kept of a text's beginning and end, this much is looked at, so that no secret is cut in two.
_MARGIN_CHARS = 1 << 16
NOTHING = "(the tool answered without content)"


class Answer(NamedTuple):
    """As an `Outcome` of a tool."""

    ok: bool
    output: str
    metadata: dict[str, object]


def answer_of(result: CallToolResult, secrets: Collection[bytes], chars_max: int) -> Answer:
    """What the server said. Its text may be longer than `chars_max`: it is cut where all answers are, and only what will be left
    of it then is made fit to be shown."""
    texts = [_text(block) for block in result.content]
    structured = _structured(result, texts)
    output = "\n".join([*texts, *([structured] if structured else [])])
    ok = not result.is_error
    metadata: dict[str, object] = {
        "parts": len(result.content),
        "content": [_facts(block, secrets) for block in result.content[:PARTS_MAX]],
    }
    if result.structured_content is not None:
        metadata["structured"] = True
    if not ok:
        metadata["error_code"] = "MCP_TOOL_ERROR"
    return Answer(ok, shown(output, secrets, chars_max) or NOTHING, metadata)


def shown(text: str, secrets: Collection[bytes], chars_max: int) -> str:
    """`text` without a terminal's controls and known secrets. Of one that is much longer than `chars_max` the middle,
    which will be cut out, is blank: to look through megabytes would hold up everybody else."""
    reach = chars_max + _MARGIN_CHARS
    if len(text) <= 2 * reach:
        return _fit(text, secrets)
    head, tail = _fit(text[:reach], secrets), _fit(text[-reach:], secrets)
    return head + " " * (len(text) - 2 * reach) + tail


def _fit(text: str, secrets: Collection[bytes]) -> str:
    seen = plain(text).encode("utf-8", "replace").decode()
    return Redaction(lambda: secrets).text(seen)


def _text(block: ContentBlock) -> str:
    match block:
        case TextContent(text=text):
            return text
        case ImageContent() | AudioContent():
            return f"[{block.type}: {_label(block.mime_type)}, {_size(block.data)} bytes, not shown]"
        case ResourceLink():
            return _told("link to a resource", block.uri, block.name, block.description or "")
        case EmbeddedResource(resource=held):
            if isinstance(held, TextResourceContents):
                return f"[resource {_label(held.uri)}]\n{held.text}"
            kind = _label(held.mime_type or "of an unknown kind")
            return f"[resource {_label(held.uri)}: {kind}, {_size(held.blob)} bytes, not shown]"
    assert_never(block)


def _told(kind: str, uri: str, name: str, description: str) -> str:
    said = ", ".join(part for part in (_label(name), _label(description)) if part)
    return f"[{kind}: {_label(uri)}{f' ({said})' if said else ''}]"


def _facts(block: ContentBlock, secrets: Collection[bytes]) -> dict[str, object]:
    def safe(text: str) -> str:
        return _fit(_label(text), secrets)

    match block:
        case TextContent(text=text):
            return {"type": block.type, "chars": len(text)}
        case ImageContent() | AudioContent():
            return {"type": block.type, "mime_type": safe(block.mime_type), "bytes": _size(block.data)}
        case ResourceLink(uri=uri):
            return {"type": block.type, "uri": safe(uri)}
        case EmbeddedResource(resource=held):
            is_text = isinstance(held, TextResourceContents)
            size = {"chars": len(held.text)} if is_text else {"bytes": _size(held.blob)}
            return {"type": block.type, "uri": safe(held.uri), **size}
    assert_never(block)


def _structured(result: CallToolResult, texts: Sequence[str]) -> str:
    """The structured answer as JSON, unless the text says the same already, as it should."""
    value = cast(object, result.structured_content)
    if value is None:
        return ""
    said = [value, *cast("dict[str, object]", value).values()] if _is_wrapped(value) else [value]
    if any(text == one or _decoded(text) == one for text in texts for one in said):
        return ""
    return msgspec.json.format(msgspec.json.encode(value), indent=2).decode()


def _is_wrapped(value: object) -> bool:
    """Servers put what is no object into one: `{"result": …}`."""
    return isinstance(value, dict) and list(cast("dict[str, object]", value)) == ["result"]


def _decoded(text: str) -> object:
    if len(text) > _COMPARED_CHARS_MAX:
        return None
    try:
        return msgspec.json.decode(text)
    except (msgspec.MsgspecError, UnicodeEncodeError, RecursionError):
        return None


def _label(text: str) -> str:
    line = " ".join(plain(text).split())
    return line if len(line) <= _LABEL_CHARS_MAX else f"{line[:_LABEL_CHARS_MAX]}…"


def _size(encoded: str) -> int:
    """The bytes behind a base64 text."""
    return max(0, len(encoded) * 3 // 4 - encoded[-2:].count("="))
