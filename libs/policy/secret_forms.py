"""Where secrets stand in a text: those that are known, and what has one of the forms that secrets are given out in. PURE.

Invariant: time is linear in the text, whatever it is made of, because hostile files and outputs are looked through, too:
every form is found by a literal part of it, and nothing that fails is read twice. A find never holds an end of line, so
that a text has as many lines without its secrets. Ordinary code stays: a name and a value are a secret only if the value
looks like chance.
"""

import re
from collections.abc import Callable, Collection, Iterator
from typing import NamedTuple

Span = tuple[int, int]

# Shorter values would be found in ordinary text.
SECRET_BYTES_MIN = 8
# One without a digit is a word, as long as it is not longer than this: keys that are none (`not-needed`) are such words.
_WORD_BYTES_MAX = 11
# What is cut off is marked so; the beginning of a secret before it gives away as much.
_CUT = (b"\xe2\x80\xa6", b" \xe2\x80\xa6", b"\n\xe2\x80\xa6")

# Where a token begins: not within a longer one, but behind the escapes of strings.
_START = rb"(?:(?<![\w-])|(?<=\\[nrt]))"
_QUOTE = rb"(?:\\?[\"'])?"


class _Form(NamedTuple):
    """What begins with one of the `anchors` (small letters stand for both) and fits. The group `secret`, or the whole, is what is
    secret; `judge` has the last word on it."""

    anchors: tuple[bytes, ...]
    pattern: re.Pattern[bytes]
    judge: Callable[[bytes], bool] | None = None


def looks_like_chance(value: bytes) -> bool:
    """Whether a value is rather made by a generator than a name or a word: long, of letters and digits, and not of words
    that are joined."""
    if len(value) < _CHANCE_BYTES_MIN or not (_DIGIT.search(value) and _LETTER.search(value)):
        return False
    return not all(_WORD.fullmatch(part) for part in _JOINTS.split(value))


_CHANCE_BYTES_MIN = 16
_DIGIT, _LETTER = re.compile(rb"[0-9]"), re.compile(rb"[A-Za-z]")
_JOINTS = re.compile(rb"[._~+/=:-]+")
_WORD = re.compile(rb"[A-Za-z]*[0-9]{0,3}")


def _is_credential(value: bytes) -> bool:
    """What stands behind the name of a scheme is one, unless it is a word of somebody who explains it."""
    return value.endswith(b"=") or (len(value) >= _CHANCE_BYTES_MIN and _DIGIT.search(value) is not None)


def _form(anchors: str, pattern: bytes, judge: Callable[[bytes], bool] | None = None) -> _Form:
    return _Form(tuple(anchors.encode().split()), re.compile(pattern), judge)


# Quantifiers are possessive, or bounded where something has to follow them.
_FORMS = (
    # Endpoints of models.
    _form("sk-", _START + rb"sk-(?:(?:proj|ant|or|svcacct|admin|lf)-[\w-]{12,}+|(?=[\w-]*[0-9])[\w-]{20,}+)"),
    _form("gsk_ xai- hf_", _START + rb"(?:gsk_|xai-|hf_)[A-Za-z0-9]{30,}+"),
    # Clouds.
    _form("akia asia abia acca", _START + rb"(?:AKIA|ASIA|ABIA|ACCA)[0-9A-Z]{16}(?![0-9A-Za-z])"),
    _form("aiza ya29. gocspx-", _START + rb"(?:AIza[\w-]{35}|ya29\.[\w-]{20,}+|GOCSPX-[\w-]{20,}+)"),
    _form("accountkey= sharedaccesskey=", rb"(?i:accountkey|sharedaccesskey)=(?P<secret>[\w+/=]{32,}+)"),
    _form("dop_v1_", _START + rb"dop_v1_[a-f0-9]{40,}+"),
    # Forges, registries, chats, payments, mail, trackers.
    _form("ghp_ gho_ ghu_ ghs_ ghr_", _START + rb"gh[pousr]_[A-Za-z0-9]{30,}+"),
    _form("github_pat_ glpat- gldt-", _START + rb"(?:github_pat_|glpat-|gldt-)[\w-]{20,}+"),
    _form("npm_ lin_api_", _START + rb"(?:npm_|lin_api_)[A-Za-z0-9]{30,}+"),
    _form("xox xapp-", _START + rb"(?:xox[abeoprs]-|xapp-)[\w-]{10,}+"),
    _form("hooks.slack.com/", rb"(?i:hooks\.slack\.com/)services/(?P<secret>[\w/]{20,}+)"),
    _form("sk_live_ rk_live_ sk_test_ rk_test_", _START + rb"[rs]k_(?:live|test)_[A-Za-z0-9]{16,}+"),
    _form("whsec_", _START + rb"whsec_[\w+/=-]{20,}+"),
    _form("sg.", _START + rb"SG\.[\w-]{16,}+\.[\w-]{16,}+"),
    # Tokens that are signed, and seeds of the bus.
    _form("eyj", _START + rb"eyJ[\w-]{10,}+\.eyJ[\w-]{10,}+(?:\.[\w-]*+)?"),
    _form("SA SU SO SN SC SX", rb"(?<![A-Z0-9])S[AUONCX][A-Z2-7]{56}(?![A-Z0-9])"),
    # Headers and addresses.
    _form(
        "authorization",
        rb"(?i:authorization)" + _QUOTE + rb"[ \t]{0,9}[:=][ \t]{0,9}" + _QUOTE
        + rb"(?i:bearer|basic|token|digest|apikey)[ \t]{1,9}(?P<secret>[\w.~+/=-]{8,}+)",
        _is_credential,
    ),
    _form("bearer", rb"(?i:\bbearer)[ \t]{1,9}(?P<secret>[\w.~+/=-]{16,}+)", looks_like_chance),
    _form("://", rb"://[^\s:/@\"'<>]{0,64}:(?P<secret>(?![$%{<*\[])[^\s/@\"'<>]{3,256})@"),
    _form("://", rb"://(?P<secret>[\w-]{16,256})@", looks_like_chance),
)  # fmt: skip

# Names whose values are secret, if they look like chance: how such a name ends, and what it may (not) begin with.
_NAMED = re.compile(
    rb"(?i:key|token|secret|passwd|password|passphrase|authorization)" + _QUOTE
    + rb"[ \t]{0,9}(?::=|=>|[:=])[ \t]{0,9}" + _QUOTE + rb"(?P<secret>[\w.~+/=-]{16,}+)"
)  # fmt: skip
_NAMES = (b"key", b"token", b"secret", b"passw", b"passphrase", b"authorization")
_KEYS_OF = (
    b"api",
    b"access",
    b"account",
    b"auth",
    b"encryption",
    b"master",
    b"private",
    b"secret",
    b"signing",
)
_TOKENS_OF_NOTHING = (b"continuation", b"csrf", b"cursor", b"next", b"page", b"sync", b"xsrf")
_NAME_BYTES_MAX = 16

_KEY_NAMES = (b"PRIVATE KEY", b"NKEY SEED")
_KEY_MARK = re.compile(
    rb"-----(?P<which>BEGIN|END) [A-Z0-9 ]{0,40}?(?:PRIVATE KEY|NKEY SEED)[A-Z ]{0,10}-----"
)
# What stands behind the beginning of a key, or before its end, on the same line: strings write ends of lines as escapes.
_BODY_BEHIND = re.compile(rb"(?:\\++[nrt])*+(?P<body>[A-Za-z0-9+/=]{4,}+(?:\\++[nrt]|[A-Za-z0-9+/=]++)*+)")
_BODY_CHARS = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/=\\"
# A line of a key, as it is or as a tool shows it: behind a number, a mark of a diff, a file's name or a quote. All but
# the last are longer than most words.
_BODY_LINE = re.compile(
    rb"(?:[0-9 ]{0,9}\t|[+ -]|[^\s:]{1,300}:[0-9]{1,9}: )?[ \t]{0,40}[\"']?"
    rb"(?P<body>[A-Za-z0-9+/=]{1,120})(?:\\n)?[\"']?[,+ \\\t]{0,4}\r?"
)
_BODY_BYTES_MIN = 16
# What may stand between a key's beginning and its body.
_HEADER_LINE = re.compile(rb"(?:[0-9 ]{0,9}\t|[+ -])?[ \t]{0,40}(?:[A-Z][A-Za-z-]{2,20}: [^\r\n]{0,200})?\r?")
# The longest keys have 300 lines, or 16 KiB on one.
KEY_LINES_MAX, _KEY_BYTES_MAX = 400, 16 * 1024


def spans(data: bytes, known: Collection[bytes] = ()) -> list[Span]:
    """Where secrets stand, in order, apart from each other."""
    return merged([*known_spans(data, known), *form_spans(data), *key_spans(data)])


def merged(found: list[Span]) -> list[Span]:
    """The same places, in order and without overlaps."""
    kept: list[Span] = []
    for start, end in sorted(found):
        if kept and start <= kept[-1][1]:
            kept[-1] = (kept[-1][0], max(end, kept[-1][1]))
        elif end > start:
            kept.append((start, end))
    return kept


def known_spans(data: bytes, known: Collection[bytes]) -> Iterator[Span]:
    """Where the given secrets stand, line by line; also their beginnings, where the text is cut."""
    for secret in known:
        for part in secret.split(b"\n"):
            if not is_guessable(part):
                yield from _known(data, part)


def is_guessable(secret: bytes) -> bool:
    """Whether a value is too short or too much of a word to be a secret: it would be found in ordinary text."""
    return len(secret) < SECRET_BYTES_MIN or (len(secret) <= _WORD_BYTES_MAX and not _DIGIT.search(secret))


def _known(data: bytes, secret: bytes) -> Iterator[Span]:
    beginning = secret[:SECRET_BYTES_MIN]
    at = data.find(beginning)
    while at >= 0:
        end = at + len(secret)
        if data.startswith(secret, at):
            yield at, end
        else:
            same = _common(data, at, secret)
            rest = data[at + same : at + same + 4]
            if not rest or rest.startswith(_CUT):
                yield at, at + same
        at = data.find(beginning, at + 1)


def _common(data: bytes, at: int, secret: bytes) -> int:
    length = SECRET_BYTES_MIN
    while length < len(secret) and at + length < len(data) and data[at + length] == secret[length]:
        length += 1
    return length


def form_spans(data: bytes) -> Iterator[Span]:
    """Where something has a known form, but for keys of several lines."""
    lowered = data.lower()
    for form in _FORMS:
        group = "secret" if "secret" in form.pattern.groupindex else 0
        for match in _matches(form.pattern, data, lowered, form.anchors):
            if form.judge is None or form.judge(match[group]):
                yield match.span(group)
    for match in _matches(_NAMED, data, lowered, _NAMES):
        if looks_like_chance(match["secret"]) and _names_a_secret(lowered, match.start()):
            yield match.span("secret")


def _matches(
    pattern: re.Pattern[bytes], data: bytes, lowered: bytes, anchors: tuple[bytes, ...]
) -> Iterator[re.Match[bytes]]:
    for anchor in anchors:
        text = data if anchor.isupper() else lowered
        at = text.find(anchor)
        while at >= 0:
            match = pattern.match(data, at)
            if match is not None:
                yield match
            # What was read is not read again.
            at = text.find(anchor, match.end() if match is not None else at + 1)


def _names_a_secret(lowered: bytes, at: int) -> bool:
    """Whether the name that goes on here is one of a secret: not every key and token is one."""
    before = lowered[max(0, at - _NAME_BYTES_MAX) : at].rstrip(b"_-")
    if lowered.startswith(b"key", at):
        return before.endswith(_KEYS_OF)
    return not (lowered.startswith(b"token", at) and before.endswith(_TOKENS_OF_NOTHING))


def has_key(data: bytes) -> bool:
    """Whether the text may hold a private key of several lines. As fast as a look for a text can be."""
    return any(name in data for name in _KEY_NAMES)


def key_spans(data: bytes) -> Iterator[Span]:
    """The lines of private keys, without the marks around them. A key may have lost its beginning or its end."""
    if not has_key(data):
        return
    for mark in _KEY_MARK.finditer(data):
        if mark["which"] == b"BEGIN":
            yield from _behind(data, mark.end())
        else:
            yield from _before(data, mark.start())


def _behind(data: bytes, at: int) -> Iterator[Span]:
    body = _BODY_BEHIND.match(data, at)
    if body is not None:
        yield body.span("body")
    end, begun = _line_end(data, at), False
    for _ in range(KEY_LINES_MAX):
        start, end = end + 1, _line_end(data, end + 1)
        line = _BODY_LINE.fullmatch(data, start, end)
        long = line is not None and len(line["body"]) >= _BODY_BYTES_MIN
        if line is not None and (long or begun):
            yield line.span("body")
        elif begun or start > len(data) or _HEADER_LINE.fullmatch(data, start, end) is None:
            return
        if begun and not long:
            return
        begun = begun or long


def _before(data: bytes, at: int) -> Iterator[Span]:
    same = data[max(0, at - _KEY_BYTES_MAX) : at]
    yield at - (len(same) - len(same.rstrip(_BODY_CHARS))), at
    start, last = data.rfind(b"\n", 0, at) + 1, None
    for number in range(KEY_LINES_MAX):
        end, start = start - 1, data.rfind(b"\n", 0, max(0, start - 1)) + 1
        line = _BODY_LINE.fullmatch(data, start, end) if end >= 0 else None
        if line is None or (number and len(line["body"]) < _BODY_BYTES_MIN):
            return
        if len(line["body"]) < _BODY_BYTES_MIN:
            # A short last line is one only behind a long one.
            last = line.span("body")
            continue
        yield from [last] if last is not None else []
        yield line.span("body")
        last = None


def _line_end(data: bytes, at: int) -> int:
    end = data.find(b"\n", at)
    return end if end >= 0 else len(data)
