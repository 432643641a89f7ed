"""The body of a request, joined from what is encoded already.

Invariant: pure; the static part (tools, then what is fixed for a model) and the messages are the same bytes in every
request of a run, so that a provider's prompt cache holds.
"""

from collections.abc import Mapping
from typing import Any, cast

import msgspec

from services.executor.egress.budget import output_room
from services.executor.egress.profile import Profile
from services.executor.egress.request import ModelRequest
from services.executor.ingress.names import wire_name

# Our estimate of the input is that: the provider may count this much more.
_INPUT_MARGIN = 1.15


def body(model: str, request: ModelRequest, profile: Profile) -> bytes:
    """The JSON of a chat completion request."""
    offered = profile.tools and request.tools is not None
    rendered = profile if offered == profile.tools else msgspec.structs.replace(profile, tools=offered)
    parts = [b'{"model":', msgspec.json.encode(model), b',"stream":true,"messages":[']
    parts += [b",".join(request.render(rendered)), b"]"]
    if offered and request.tools is not None:
        parts += [b',"tools":', renamed(request.tools, profile, request.schemas)]
    if profile.include_usage:
        parts.append(b',"stream_options":{"include_usage":true}')
    if profile.output_key and (tokens := output_tokens(request, profile)) is not None:
        parts.append(b',"%b":%d' % (profile.output_key.encode(), tokens))
    for name, value in profile.body.items():
        parts += [b",", msgspec.json.encode(name), b":", msgspec.json.encode(value)]
    parts.append(b"}")
    return b"".join(parts)


def names_of(schemas: Mapping[str, object], profile: Profile) -> dict[str, str]:
    """What the provider is told that each tool is called → the tool."""
    return {wire_name(name, profile.aliases, plain=profile.plain_names): name for name in schemas}


def renamed(tools: bytes, profile: Profile, schemas: Mapping[str, object]) -> bytes:
    """The array of offered tools under the names of a profile."""
    if not profile.aliases and not profile.plain_names:
        return tools
    known = names_of(schemas, Profile())
    found = cast(list[dict[str, Any]], msgspec.json.decode(tools))
    for tool in found:
        name: str = tool["function"]["name"]
        tool["function"]["name"] = wire_name(
            known.get(name, name), profile.aliases, plain=profile.plain_names
        )
    return msgspec.json.encode(found)


def output_tokens(request: ModelRequest, profile: Profile) -> int | None:
    """The limit of the answer, if any: the smallest of those that are set, and no more than the context has room for."""
    limits = [limit for limit in (request.output_tokens_max, profile.output_tokens_max) if limit is not None]
    if not limits:
        return None
    contexts = [tokens for tokens in (request.context_tokens, profile.context_tokens) if tokens is not None]
    if contexts:
        context = min(contexts)
        # What the window keeps free is there in any case; where it is not, the provider refuses, which is an overflow.
        limits.append(max(output_room(context), context - int(request.estimated_tokens * _INPUT_MARGIN)))
    return min(limits)
