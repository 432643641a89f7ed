"""The secrets among the variables of a process: what it must never say.

Invariant: found by name, so that a variable which nothing reads yet is kept secret, too; what no name tells (an access key
in a variable of the operator's own) must look like chance, because a common word would be missing from every text.
"""

import re
from collections.abc import Iterator, Mapping
from urllib.parse import quote, unquote, urlsplit

import msgspec

from libs.policy.secret_forms import is_guessable, looks_like_chance

_SECRET = frozenset(
    {
        "OPENAI_API_KEY",
        "DASHSCOPE_API_KEY",
        "NATS_PASSWORD",
        "PERDURE_OPERATOR_KEY",
        "PERDURE_TOKEN",
        "MEILISEARCH_API_KEY",
        "LANGFUSE_SECRET_KEY",
        "LINEAR_API_KEY",
    }
)
_KEYS_BY_TENANT = "RUNTIME_API_KEYS_JSON"
_MAY_BE_SECRET = re.compile(r".*(?:KEY|TOKEN|SECRET|PASSWORD|PASSWD|PASSPHRASE|CREDENTIALS?)(?:_ID)?")
_ADDRESS = re.compile(r"[a-z][a-z0-9+.-]*://[^\s,]*@[^\s,]+")


def secrets_in(variables: Mapping[str, str]) -> tuple[bytes, ...]:
    """The values that must not be shown, in every form in which addresses write them."""
    found = (secret for name, value in variables.items() for secret in _in_variable(name, value))
    forms = {form for secret in found for form in (secret, quote(secret, safe=""))}
    return tuple(sorted(form.encode() for form in forms if not is_guessable(form.encode())))


def _in_variable(name: str, value: str) -> Iterator[str]:
    if name in _SECRET or (_MAY_BE_SECRET.fullmatch(name) and looks_like_chance(value.encode())):
        yield value
    if name == _KEYS_BY_TENANT:
        yield from _in_json(value)
    for address in _ADDRESS.finditer(value):
        try:
            password = urlsplit(address[0]).password
        except ValueError:
            continue
        if password:
            yield unquote(password)


def _in_json(value: str) -> Iterator[str]:
    try:
        by_tenant = msgspec.json.decode(value, type=dict[str, str | list[str]])
    except msgspec.MsgspecError:
        return
    for given in by_tenant.values():
        yield from [given] if isinstance(given, str) else given
