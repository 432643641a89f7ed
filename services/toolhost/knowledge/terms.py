"""What a text is found by: its words, in the one form in which documents and queries meet. PURE.

Invariant: a document and a query go through the same function, so what is written alike is found; there is no query
syntax, and no text is an invalid query.
"""

import re
import unicodedata
from collections.abc import Iterator

# Longer ones are data (hashes, base64); nobody searches for them whole.
_TERM_CHARS_MAX = 64

# Scripts that put no spaces between words: kana, ideographs and what belongs to them.
_UNSPACED = r"\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
_RUNS = re.compile(rf"[{_UNSPACED}]+|[^\W{_UNSPACED}]+")
_IS_UNSPACED = re.compile(rf"[{_UNSPACED}]")
# The words within a name: parseHTMLFile_v2 is parse, HTML, File, v, 2.
_PARTS = re.compile(r"[A-Z]+(?=[A-Z][a-z])|[A-Z]?[a-z]+|[A-Z]+|\d+")


def terms(text: str) -> Iterator[str]:
    """The terms of a text in their order. A name is a term as a whole and by its parts; where words have no spaces,
    characters and pairs of them are terms."""
    for match in _RUNS.finditer(unicodedata.normalize("NFKC", text)):
        run = match[0]
        if _IS_UNSPACED.match(run):
            yield from run
            yield from (run[at : at + 2] for at in range(len(run) - 1))
            continue
        plain = _plain(run)
        whole = plain.casefold()[:_TERM_CHARS_MAX]
        yield whole
        parts = _PARTS.findall(plain) if plain.isascii() else plain.split("_")
        folded = [part.casefold()[:_TERM_CHARS_MAX] for part in parts if part]
        if folded != [whole]:
            yield from folded


def _plain(word: str) -> str:
    """Without accents."""
    letters = unicodedata.normalize("NFKD", word)
    return unicodedata.normalize("NFC", "".join(char for char in letters if not unicodedata.combining(char)))
