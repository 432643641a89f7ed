"""What strangers write, made fit for a model's prompt. PURE.

Invariant: what comes out can be seen by a person who reads it: no control characters, no direction marks, no invisible
ones that carry words; and it has a bound.
"""

import unicodedata

from services.toolhost.output import plain

# Two that scripts need: the joiners of Persian, of Indic scripts and of emoji.
_JOINERS = "\u200c\u200d"
# Variation selectors: one after another they spell hidden bytes.
_SELECTORS = range(0xE0100, 0xE01F0)
# Formats (direction marks and tags among them), surrogates, private and unassigned ones.
_UNSEEN = frozenset({"Cf", "Cs", "Co", "Cn"})


def cleaned(text: str, chars_max: int) -> str:
    """`text` without what nobody sees, cut where it is too long."""
    # A text that is very much too long is not worth looking through.
    kept = "".join(filter(_is_seen, plain(text[: 4 * chars_max])))
    kept = kept.strip()
    return kept if len(kept) <= chars_max else f"{kept[: chars_max - 1]}…"


def _is_seen(character: str) -> bool:
    if character in _JOINERS:
        return True
    return unicodedata.category(character) not in _UNSEEN and ord(character) not in _SELECTORS
