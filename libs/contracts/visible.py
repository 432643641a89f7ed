"""Text that shows what it holds: characters that hide, or reorder what surrounds them, are written as escapes.

Invariant: pure; the JSON of `visible_json` decodes to exactly the value it was made of, so whoever reads it has seen
all of it.
"""

import json
import unicodedata

# Controls, format characters (zero-width, bidirectional), private ones, surrogates, line separators.
_HIDING = frozenset({"Cc", "Cf", "Co", "Cs", "Zl", "Zp"})
# Spaces that are not the space, and what this version of Unicode does not know.
_DOUBTFUL = frozenset({"Cn", "Zs"})
# What looks like nothing although its category is that of a letter, a mark or a symbol: grapheme joiner, fillers of
# Hangul and Khmer, variation selectors, the empty braille cell.
_BLANK = (
    (0x034F, 0x034F),
    (0x115F, 0x1160),
    (0x17B4, 0x17B5),
    (0x180B, 0x180F),
    (0x2800, 0x2800),
    (0x3164, 0x3164),
    (0xFE00, 0xFE0F),
    (0xFFA0, 0xFFA0),
    (0xE0100, 0xE01EF),
)


def hides(char: str) -> bool:
    """Whether a character hides itself or its neighbours, or moves them. Enough for prose."""
    return unicodedata.category(char) in _HIDING


def visible(text: str) -> str:
    """Prose with every hiding character but the new line and the tab written as an escape."""
    return "".join(_escaped(char) if hides(char) and char not in "\n\t" else char for char in text)


def visible_json(value: object) -> str:
    """A JSON value on one line, keys sorted, every character that a reader could miss or be misled by escaped as JSON
    escapes it: for what a person approves. The plain space is the only space that is shown as one."""
    text = json.dumps(value, sort_keys=True, ensure_ascii=False)
    return "".join(_escaped(char) if _misleads(char) else char for char in text)


def _misleads(char: str) -> bool:
    if " " <= char <= "~":
        return False
    if hides(char) or unicodedata.category(char) in _DOUBTFUL:
        return True
    return any(first <= ord(char) <= last for first, last in _BLANK)


def _escaped(char: str) -> str:
    """`\\uXXXX`, twice for characters beyond the basic plane."""
    return json.dumps(char)[1:-1] if ord(char) > 0x7F else f"\\u{ord(char):04x}"
