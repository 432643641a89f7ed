"""Tool calls that a model writes into its text, because its server did not read them.

Invariant: tolerant, never inventive: arguments count only when their own end stands in the text; what is quoted in code is
no call. Whether such calls are carried out at all is the operator's choice (`text_calls` of a model's profile).

    <tool_call>{"name": N, "arguments": {...}}</tool_call>              <function=N><parameter=K>V</parameter></function>
    <tool_call>N<arg_key>K</arg_key><arg_value>V</arg_value></tool_call>   <invoke name="N"><parameter name="K">V</parameter>
    [TOOL_CALLS][{"name": N, "arguments": {...}}]  or  N[ARGS]{...}     {"name": N, "arguments": {...}}, the whole text
    <|tool_call_begin|>N<|tool_call_argument_begin|>{...}<|tool_call_end|>
"""

import json
import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple, cast

import msgspec

from libs.contracts.ids import call_id
from libs.contracts.values import ModelToolCall
from services.executor.ingress.acceptance import CALLS_SHOWN_MAX
from services.executor.ingress.arguments import CUT_OFF, read_arguments
from services.executor.ingress.assembly import NAME_CHARS_MAX, RAW_ARGUMENTS_CHARS_MAX
from services.executor.ingress.names import meant
from services.executor.ingress.text import clipped
from services.executor.ingress.turn import ModelTurn

_MARK = re.compile(
    r"<tool_call>|<\|?/?tool_calls?[_|>]|<function=[\w.-]+>|<(?:\w+:|[\uff5c|]DSML[\uff5c|])?invoke name=|\[TOOL_CALLS\]"
    r"|<\|tool_call|<[\uff5c|]tool▁call|<\|python_tag\|>|to=functions\.\w"
)
_QUOTED = re.compile(r"```.*?```|`[^`\n]*`", re.DOTALL)
_FENCE = re.compile(r"```(?:json|tool_call|tool_code)?\s")
_WRAPPER = re.compile(r"<[^<>]*(?:calls|section)[^<>]*>\s*$")
_BETWEEN = re.compile(r"\s*(?:\[TOOL_CALLS\]|,)?\s*")

_BLOCK = re.compile(
    r"<tool_call>(?P<hermes>.*?)(?:</tool_call>|(?=<tool_call>)|(?P<open1>\Z))"
    r"|<function=(?P<function>[^>\s]+)>(?P<parameters>.*?)(?:</function>|(?P<open2>\Z))"
    r"|<(?:\w+:|[\uff5c|]DSML[\uff5c|])?invoke name=\"(?P<invoke>[^\"]+)\">(?P<inner>.*?)(?:</(?:\w+:|[\uff5c|]DSML[\uff5c|])?invoke>|(?P<open3>\Z))"
    r"|<\|tool_call_begin\|>(?P<kimi>[^<\s]+)\s*<\|tool_call_argument_begin\|>(?P<given>.*?)(?:<\|tool_call_end\|>|(?P<open4>\Z))",
    re.DOTALL,
)
_PARAMETER = re.compile(
    r"<(?:\w+:|[\uff5c|]DSML[\uff5c|])?parameter(?:=| name=\")(?P<key>[^>\"]+)[^>]*>(?P<value>.*?)</(?:\w+:|[\uff5c|]DSML[\uff5c|])?parameter>"
    r"|<arg_key>(?P<glm>.*?)</arg_key>\s*<arg_value>(?P<glm_value>.*?)</arg_value>",
    re.DOTALL,
)
_OPEN_PARAMETER = re.compile(r"<[\w:\uff5c|]*parameter[= ]|<arg_key>|<arg_value>")
_FUNCTION = re.compile(r"\s*<function=(?P<name>[^>\s]+)>(?P<body>.*?)(?:</function>\s*)?\Z", re.DOTALL)
_NAMED = re.compile(r"\s*(?P<name>[\w.:-]+)\s*(?:\[ARGS\])?\s*(?=\{|<arg_key>|\Z)")


class Spoken(NamedTuple):
    """A call in a text. `arguments` is JSON, or `None` when it has no end."""

    name: str
    arguments: str | None


def has_calls(text: str) -> bool:
    """Whether a text holds what looks like a tool call, outside of quoted code."""
    if _MARK.search(text) and _MARK.search(_QUOTED.sub("", text)):
        return True
    return _whole(text) is not None


def spoken(text: str) -> tuple[str, list[Spoken]]:
    """The text before the first call, and the calls."""
    if (whole := _whole(text)) is not None:
        return "", [whole]
    before, mark, listed = text.partition("[TOOL_CALLS]")
    if mark:
        return before, list(_listed(listed))
    first = _BLOCK.search(text)
    if first is None:
        return text, []
    return _WRAPPER.sub("", text[: first.start()]), [
        call for match in _BLOCK.finditer(text) for call in _in_block(match)
    ]


def with_spoken_calls(
    turn: ModelTurn,
    iteration: int,
    schemas: Mapping[str, Mapping[str, object]],
    names: Mapping[str, str],
) -> ModelTurn:
    """The turn with the calls of its text as calls; as it is when there are none."""
    if turn.calls or not has_calls(turn.content):
        return turn
    before, found = spoken(turn.content)
    calls: list[ModelToolCall] = []
    for index, one in enumerate(found[:CALLS_SHOWN_MAX]):
        name = meant(one.name[:NAME_CHARS_MAX], schemas, names)
        read = read_arguments(one.arguments or "{", schemas.get(name))
        raw = None if read.problem is None else clipped(one.arguments or "", RAW_ARGUMENTS_CHARS_MAX)
        problem = CUT_OFF if one.arguments is None else read.problem
        calls.append(
            ModelToolCall(
                call_id=call_id(iteration, index),
                name=name,
                arguments=None if problem else read.value,
                raw_arguments=raw,
                problem=problem,
            )
        )
    if not calls:
        return turn
    cut_off = found[-1].arguments is None
    dropped = len(found) - len(calls)
    return msgspec.structs.replace(
        turn, content=before.strip(), calls=calls, cut_off=cut_off, calls_dropped=dropped
    )


def _in_block(match: re.Match[str]) -> Iterator[Spoken]:
    whole = all(match[end] is None for end in ("open1", "open2", "open3", "open4"))
    if (body := match["hermes"]) is not None:
        if (function := _FUNCTION.match(body)) is not None:
            yield Spoken(function["name"], _parameters(function["body"], whole=whole))
        elif (named := _NAMED.match(body)) is not None:
            yield Spoken(named["name"], _parameters(body[named.end() :], whole=whole))
        else:
            yield from _listed(body if whole else body + " ")
    else:
        name = match["function"] or match["invoke"] or match["kimi"]
        body = next(
            found for found in (match["parameters"], match["inner"], match["given"]) if found is not None
        )
        yield Spoken(name, _parameters(body, whole=whole))


def _parameters(body: str, *, whole: bool) -> str | None:
    """The arguments in a block as JSON: they are JSON, or stand each in a tag of its own."""
    if not whole:
        return None
    if body.lstrip().startswith("{"):
        return body
    found = {
        (match["key"] or match["glm"]).strip(): _unpadded(
            match["value"] if match["value"] is not None else match["glm_value"]
        )
        for match in _PARAMETER.finditer(body)
    }
    rest = _PARAMETER.sub("", body).strip()
    if _OPEN_PARAMETER.search(rest):
        return None
    return rest or json.dumps(found)  # What stands in no tag is no argument; read as one it says so.


def _unpadded(value: str) -> str:
    """Some write each value between line breaks of its own."""
    return value[1:-1] if len(value) > 1 and value[0] == value[-1] == "\n" else value


def _listed(body: str) -> Iterator[Spoken]:
    """`[{"name", "arguments"}, ...]`, one of them, several in a row, or `NAME[ARGS]{...}`."""
    decoder, at = json.JSONDecoder(strict=False), 0
    while (gap := _BETWEEN.match(body, at)) is not None and (at := gap.end()) < len(body):
        named = _NAMED.match(body, at)
        start = named.end() if named is not None else at
        try:
            value, at = decoder.raw_decode(body, start)
        except (ValueError, RecursionError):
            # It has no end, or is no JSON: read as arguments it says which.
            name = re.search(r'"name"\s*:\s*"([^"]+)"', body[start:])
            yield Spoken(named["name"] if named is not None else name[1] if name else "", body[start:])
            return
        if named is not None:
            yield Spoken(named["name"], json.dumps(value))
            continue
        for entry in cast(list[object], value) if isinstance(value, list) else [cast(object, value)]:
            if (call := _call(entry)) is not None:
                yield call


def _call(value: object) -> Spoken | None:
    if not isinstance(value, dict):
        return None
    fields = cast(dict[str, object], value)
    inner = fields.get("function")
    if isinstance(inner, dict):
        fields = cast(dict[str, object], inner)
    name = fields.get("name")
    arguments = next((fields[key] for key in ("arguments", "parameters", "input") if key in fields), None)
    if not isinstance(name, str) or not name:
        return None
    return Spoken(name, arguments if isinstance(arguments, str) else json.dumps(arguments or {}))


def _whole(text: str) -> Spoken | None:
    """A text that is nothing but a call."""
    text = text.strip()
    body = text
    if (fence := _FENCE.match(text)) is not None and text.endswith("```"):
        body = text[fence.end() : -3].strip()
    if not (body.startswith("{") and body.endswith("}") and '"name"' in body):
        return None
    try:
        value = cast(object, json.loads(body, strict=False))
    except (ValueError, RecursionError):
        return None
    if not isinstance(value, dict):
        return None
    keys = set(cast(dict[str, object], value))
    return _call(cast(object, value)) if keys in ({"name", "arguments"}, {"name", "parameters"}) else None
