"""Secrets in what is kept or shown: masked in place. PURE.

Invariant: nothing changes its length, so whatever is cut into pieces can be cut in the same places afterwards, and JSON
stays JSON. It masks the values it is given, and what has the shape of a secret; it cannot know every secret.
"""

import re
from collections.abc import Collection

from libs.policy.secret_forms import SECRET_BYTES_MIN, spans

# What is kept is often cut: at its end the beginning of a secret gives away as much, unless it is hardly any of it.
BEGINNING_BYTES_MIN = 4

# What may be a secret where nothing has to be exact: more than the known forms. None of them reaches over a quote, because
# what stands behind one may be the frame of a message.
_GUESSES = re.compile(
    rb"(?i:\bbearer)\s+(?P<bearer>[\w.~+/=-]{16,}+)|\bsk-[\w-]{16,}+"
    rb"|://[^\s:/@\"']{1,64}:(?P<login>[^\s/@\"']{3,256})@"
    rb"|(?i:api[_-]?key|passw(?:or)?d|client[_-]?secret|secret[_-]?key|access[_-]?token|auth[_-]?token|authorization)"
    rb"(?:\\?[\"'])?\s*[:=]\s*(?:\\?[\"'])?(?P<named>[\w.~+/=-]{8,}+)",
    re.DOTALL,
)
# The texts of a stream's deltas: a secret that a model repeats comes in several of them.
_DELTA = re.compile(rb'"(content|reasoning_content|reasoning|arguments)"\s*:\s*"((?:[^"\\]|\\.)*)"')


def masked(data: bytes, secrets: Collection[bytes] = ()) -> bytes:
    """`data` with every secret overwritten by asterisks, and the beginning of one at its end."""
    found = bytearray(data)
    for secret in secrets:
        if len(secret) >= SECRET_BYTES_MIN:
            at = data.find(secret)
            while at >= 0:
                found[at : at + len(secret)] = b"*" * len(secret)
                at = data.find(secret, at + len(secret))
            if cut := _cut_at_the_end(data, secret):
                found[-cut:] = b"*" * cut
    for match in _GUESSES.finditer(data):
        group = next((name for name, value in match.groupdict().items() if value is not None), 0)
        start, end = match.span(group)
        found[start:end] = b"*" * (end - start)
    for start, end in spans(data):
        found[start:end] = b"*" * (end - start)
    return bytes(found)


def _cut_at_the_end(data: bytes, secret: bytes) -> int:
    """How many bytes of a secret `data` ends with, if it ends before the secret does."""
    sizes = range(min(len(secret) - 1, len(data)), BEGINNING_BYTES_MIN - 1, -1)
    return next((size for size in sizes if data.endswith(secret[:size])), 0)


def masked_stream(data: bytes, secrets: Collection[bytes] = ()) -> bytes:
    """The same for a stream of chat-completion chunks: secrets that are split over its deltas are masked too."""
    found = bytearray(masked(data, secrets))
    places: dict[bytes, list[tuple[int, int]]] = {}
    for match in _DELTA.finditer(found):
        places.setdefault(match[1], []).append(match.span(2))
    for pieces in places.values():
        whole = masked(b"".join(bytes(found[start:end]) for start, end in pieces), secrets)
        at = 0
        for start, end in pieces:
            found[start:end] = whole[at : at + end - start]
            at += end - start
    return bytes(found)
