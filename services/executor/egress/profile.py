"""What an endpoint can take, per model: said by the operator, or learned from what it refused.

Invariant: pure; a refusal teaches each thing at most once in a call, so that learning ends; what is learned changes how
a request is written, never what it says.

The operator's word is `PERDURE_MODEL_PROFILES`, JSON by model, `*` for all that are not named:

    {"some-model": {"output_tokens_max": 16000, "reasoning": "reasoning_content", "aliases": {"run_command": "shell"}}}
"""

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated, Literal, NamedTuple

import msgspec

# What the rest of a request holds; it is not the operator's to set.
_OURS = frozenset(
    {"model", "messages", "tools", "stream", "stream_options", "max_tokens", "max_completion_tokens"}
)
ANY_MODEL = "*"
# Models of which something was learned: tasks may name any.
LEARNED_MAX = 256


class Profile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`reasoning`: the key under which a model wants back what it thought. `output_tokens_max` goes out under
    `output_key` ("": under none). `tools`: tools are offered; without, former calls are told as text. `text_calls`:
    calls that it writes into its text are carried out. `aliases`: what it is told that a tool is called; `plain_names`:
    all names are made of small letters. `extra_content`: what it hung on a call goes back. `system_role`: it knows
    system messages. `null_content`: a turn of calls may have no content. `long_ids`: ids of calls may
    have more than nine letters and digits. `user_after_tool`: a user may speak after results. `body`: more fields of the request.
    """

    include_usage: bool = True
    reasoning: Literal["", "reasoning_content", "reasoning"] = ""
    output_key: Literal["", "max_tokens", "max_completion_tokens"] = "max_tokens"
    output_tokens_max: Annotated[int, msgspec.Meta(ge=1)] | None = None
    context_tokens: Annotated[int, msgspec.Meta(ge=1)] | None = None
    tools: bool = True
    text_calls: bool = False
    aliases: dict[str, str] = {}
    plain_names: bool = False
    extra_content: bool = True
    system_role: bool = True
    null_content: bool = True
    long_ids: bool = True
    user_after_tool: bool = True
    body: dict[str, object] = {}

    def __post_init__(self) -> None:
        if ours := sorted(_OURS & self.body.keys()):
            raise ValueError(f"`body` may not hold {', '.join(ours)}")
        if len({*self.aliases.values()}) < len(self.aliases):
            raise ValueError("two tools have the same alias")


Profiles = Mapping[str, Profile]
NO_PROFILES: Profiles = MappingProxyType({})


def parse_profiles(text: str) -> Profiles:
    """The profiles in a setting. Raises `ValueError` naming what is wrong."""
    try:
        return msgspec.json.decode(text, type=dict[str, Profile])
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError) as error:
        raise ValueError(f"is not JSON of profiles by model: {error}") from error


def profile_of(profiles: Profiles, model: str) -> Profile:
    """What is said about a model."""
    return profiles.get(model) or profiles.get(ANY_MODEL) or _PLAIN


class LearnedProfiles:
    """The profiles of models that taught something, as long as the process lives and there are not too many of them."""

    def __init__(self) -> None:
        self._found: dict[str, Profile] = {}

    def find(self, model: str) -> Profile | None:
        return self._found.get(model)

    def keep(self, model: str, profile: Profile) -> None:
        """Remember the model's profile. Of too many the one that taught longest ago goes: it teaches again, for one
        refusal."""
        self._found.pop(model, None)
        while len(self._found) >= LEARNED_MAX:
            del self._found[next(iter(self._found))]
        self._found[model] = profile


class Learned(NamedTuple):
    about: str
    profile: Profile


def learned(profile: Profile, status: int, body: str, known: frozenset[str] = frozenset()) -> Learned | None:
    """What a refusal teaches: a profile that differs in one thing that is not in `known`, or nothing."""
    if status not in (400, 422):
        return None
    said = body.lower()
    for about, teach in _TEACHERS.items():
        changes = teach(profile, said) if about not in known else None
        if changes:
            return Learned(about, msgspec.structs.replace(profile, **changes))
    return None


_PLAIN = Profile()
_Changes = dict[str, object] | None

_MOST = re.compile(
    r"(?:at most|less than or equal to|<=|maximum(?: \w+){0,3}|up to|range[^\d]{0,40}\[\s*\d+\s*,)[^\d]{0,20}(\d{2,9})"
)
_UNKNOWN_FIELD = re.compile(
    r"un(?:known|supported|recogni[sz]ed|expected)|not (?:permitted|allowed|supported)|extra|additional"
)
_NO_SYSTEM = re.compile(
    r"system (?:role|message|prompt)s?\W+(?:\w+ ){0,3}(?:not|un)|(?:not|n't) support\w* (?:\w+ ){0,2}system"
)
_NO_NULL = re.compile(
    r"content\b.{0,80}\b(?:null|none|nil|valid string|must be a string|required|missing)|null.{0,40}content",
    re.DOTALL,
)
_NO_LONG_ID = re.compile(r"tool[ _]call[ _]?id.{0,80}\b(?:length|9)\b", re.DOTALL)
_NO_USER = re.compile(r"role\W+user\W+after\W+(?:role\W+)?tool")
_NAME = re.compile(r"(?:function|tool)s?\b[\w\[\].' ]{0,30}name", re.DOTALL)
_REFUSED_NAME = re.compile(r"invalid|pattern|match|length|long|character|reserved|must")


def _usage(profile: Profile, said: str) -> _Changes:
    named = "stream_options" in said or "include_usage" in said
    return {"include_usage": False} if profile.include_usage and named else None


def _reasoning(profile: Profile, said: str) -> _Changes:
    if profile.reasoning:
        return {"reasoning": ""} if profile.reasoning in said else None
    return {"reasoning": "reasoning_content"} if "reasoning_content" in said else None


def _output(profile: Profile, said: str) -> _Changes:
    plain = "max_tokens" in said.replace("max_completion_tokens", "")
    if profile.output_key == "max_tokens" and plain and "max_completion_tokens" in said:
        return {"output_key": "max_completion_tokens"}
    if profile.output_key == "" or profile.output_key not in said:
        return None
    if (most := _MOST.search(said)) is not None:
        allowed = int(most[1])
        if profile.output_tokens_max is None or allowed < profile.output_tokens_max:
            return {"output_tokens_max": allowed}
    return {"output_key": "max_tokens" if profile.output_key == "max_completion_tokens" else ""}


def _extra_content(profile: Profile, said: str) -> _Changes:
    if "extra_content" not in said and "thought_signature" not in said:
        return None
    return {"extra_content": not profile.extra_content}


def _body(profile: Profile, said: str) -> _Changes:
    kept = {name: value for name, value in profile.body.items() if name.lower() not in said}
    return {"body": kept} if len(kept) < len(profile.body) else None


def _system(profile: Profile, said: str) -> _Changes:
    return {"system_role": False} if profile.system_role and _NO_SYSTEM.search(said) else None


def _null(profile: Profile, said: str) -> _Changes:
    return {"null_content": False} if profile.null_content and _NO_NULL.search(said) else None


def _ids(profile: Profile, said: str) -> _Changes:
    return {"long_ids": False} if profile.long_ids and _NO_LONG_ID.search(said) else None


def _user_after_tool(profile: Profile, said: str) -> _Changes:
    return {"user_after_tool": False} if profile.user_after_tool and _NO_USER.search(said) else None


def _names(profile: Profile, said: str) -> _Changes:
    refused = not profile.plain_names and _NAME.search(said) and _REFUSED_NAME.search(said)
    return {"plain_names": True} if refused else None


# The first that fits; the ones that look for a name of ours come before those that go by the wording.
_TEACHERS = {
    "usage": _usage,
    "reasoning": _reasoning,
    "output": _output,
    "extra_content": _extra_content,
    "body": _body,
    "system": _system,
    "content": _null,
    "ids": _ids,
    "turns": _user_after_tool,
    "names": _names,
}
