"""Tool names between us and a provider.

Invariant: pure and stable: a tool has the same name on the wire in every request of a run; a name is taken for
another one only where that gives a tool that is offered.
"""

import hashlib
import re
from collections.abc import Collection, Mapping

# What every provider takes: the strictest want a letter or an underscore first.
_LEGAL = re.compile(r"[a-zA-Z_][a-zA-Z0-9_-]{0,63}")
_ILLEGAL = re.compile(r"[^a-zA-Z0-9_-]")
WIRE_CHARS_MAX = 64
_DIGEST_CHARS = 8
_PLAIN_CHARS = 23

# Namespaces that models put before a name, and what they write behind one.
_BEFORE = re.compile(r"(?:functions?|tools?|tool_use|default_api)[.:/]")
_BEHIND = re.compile(r"(?::\d+|<\|.*|\(\))$", re.DOTALL)


def wire_name(name: str, aliases: Mapping[str, str], *, plain: bool = False) -> str:
    """What a provider is told: the operator's alias, or the name, made legal where it is not. `plain` is for a provider
    that refuses legal names: short, of small letters, and none that anybody has reserved.

    Two names never become one: what had to be changed carries a digest of what it was.
    """
    if name in aliases:
        return aliases[name]
    if _LEGAL.fullmatch(name) and not plain:
        return name
    kept = _ILLEGAL.sub("_", name)
    if plain:
        kept = f"t_{kept.replace('-', '_').lower()}"[:_PLAIN_CHARS]
    elif not _LEGAL.match(kept):
        kept = f"_{kept}"
    digest = hashlib.blake2s(
        name.encode("utf-8", "surrogatepass"), digest_size=_DIGEST_CHARS // 2
    ).hexdigest()
    return f"{kept[: WIRE_CHARS_MAX - _DIGEST_CHARS - 1]}_{digest}"


def meant(name: str, offered: Collection[str], names: Mapping[str, str]) -> str:
    """The tool that a model means by `name`: the one of that name on the wire, or the one it adorns."""
    if name in names:
        return names[name]
    if name in offered:
        return name
    plain = _BEHIND.sub("", _BEFORE.sub("", name, count=1)).strip()
    plain = names.get(plain, plain)
    return plain if plain in offered else name
