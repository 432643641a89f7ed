"""Finds the paths in an answer and cuts it into sentences around them. PURE.

Invariant: code blocks and addresses on the web are gone before anything is looked for, and what is left of a path is a
placeholder, so that no word inside a name can be taken for a word of the sentence.
"""

import re
from collections.abc import Iterator
from typing import NamedTuple

PLACEHOLDER = re.compile(r"⟦\d+⟧")

_EXTENSIONS = (
    "py|pyi|ipynb|js|jsx|ts|tsx|mjs|cjs|vue|svelte|md|mdx|rst|txt|json|jsonl|yaml|yml|toml|ini|cfg|conf|env|html|htm|css"
    "|scss|sass|less|sh|bash|zsh|bat|ps1|go|rs|java|kt|kts|scala|swift|c|h|cc|cpp|cxx|hpp|cs|rb|php|pl|lua|r|jl|ex|exs|hs"
    "|mod|sum|sql|xml|csv|tsv|svg|png|jpg|jpeg|gif|pdf|lock|log|proto|gradle|tf|ml|dart|asm|diff|patch|tex|bin|dat|out|zip"
)
_BARE_NAMES = r"Makefile|Dockerfile|Jenkinsfile|Procfile|\.gitignore|\.dockerignore|\.env|\.editorconfig"
_PART = r"[\w.+@-]+"
_PATH = (
    rf"(?:\./)?(?:(?:{_PART}/)+(?:[\w.+@-]*\w\.[A-Za-z][A-Za-z0-9]{{0,7}}|{_BARE_NAMES})"
    rf"|[\w+@-][\w.+@-]*\.(?:{_EXTENSIONS})|{_BARE_NAMES})"
)
_LINE_NUMBER = r"(?:(?::\d+(?:[-:]\d+)?)|#L\d+(?:-L?\d+)?)?"
_QUOTED = re.compile(rf"(?P<q>[`\"'])(?P<path>{_PATH}){_LINE_NUMBER}(?P=q)", re.ASCII)
_CODE = re.compile(r"`[^`\n]*`")
_BARE = re.compile(rf"(?<![\w@/.:~\\*$<{{-])(?P<path>{_PATH}){_LINE_NUMBER}(?!\.?[\w/(*\\])", re.ASCII)
# What comes before the first slash of an address without a scheme.
_HOST = re.compile(r"(?:[\w-]+\.)+(?:com|org|net|io|dev|ai|app|co|edu|gov)/.*", re.IGNORECASE)
# Names of products that look like files.
_PRODUCTS = re.compile(
    r"(?:node|vue|next|nuxt|express|react|angular|three|d3|chart|backbone|ember|moment|socket|discord|p5|alpine|nest|require"
    r"|ext|deno|bun|ml5|tensorflow|handlebars|underscore|day|solid|asp)\.(?:js|ts|io|net)",
    re.IGNORECASE,
)
_FENCE = re.compile(
    r"^(?P<indent>[ \t]*)(?P<fence>`{3,}|~{3,}).*?(?:^[ \t]*(?P=fence)[ \t]*$|\Z)", re.MULTILINE | re.DOTALL
)
# No path, word or address that anybody wrote is as long as this, and no sentence as long as that.
_WORD_CHARS_MAX = 500
_SENTENCE_CHARS_MAX = 2000
_MONSTER = re.compile(rf"\S{{{_WORD_CHARS_MAX},}}")
_LINK = re.compile(r"\[([^\]\n]*)\]\((?:[^()\s]|\([^()\s]*\))*\)")
_ADDRESS = re.compile(r"\b(?:[a-z][a-z0-9+.-]*://|www\.)\S+|\b[\w.+-]+@[\w-]+\.[\w.]+\b", re.IGNORECASE)
_ITEM = re.compile(r"^\s*(?:[-*+•▪◦]|\d{1,3}[.)])\s+(?:\[[ xX]\]\s+)?")
_DECORATION = re.compile(r"^(?:#{1,6}\s+|>\s+|[✅✔✓☑🎉✨📝🔧\u2795]\ufe0f?\s*)+")
_SENTENCE_END = re.compile(r"(?<=[.!?;])\s+(?=\S)")


class Line(NamedTuple):
    """One sentence. `text` has `⟦i⟧` in the place of `paths[i]`; `is_item` says that it opens an item of a list."""

    text: str
    paths: list[str]
    is_item: bool
    source: str


def lines_of(answer: str) -> Iterator[Line]:
    """The sentences of the answer."""
    text = _ADDRESS.sub(" ", _LINK.sub(r"\1", _MONSTER.sub(" ", _FENCE.sub("\n", answer))))
    for raw in text.replace("**", "").splitlines():
        item = _ITEM.match(raw)
        body = _DECORATION.sub("", raw[item.end() :] if item else raw.strip()).strip()
        if not body or body.startswith("|---"):
            continue
        body = body.strip("|").replace("|", " — ").strip() if body.startswith("|") else body
        marked, paths = _marked(body)
        is_item = item is not None or raw.lstrip().startswith("|")
        for index, sentence in enumerate(_SENTENCE_END.split(marked)):
            if len(sentence) <= _SENTENCE_CHARS_MAX:
                yield _line(sentence, paths, is_item=is_item and index == 0)


def _marked(body: str) -> tuple[str, list[str]]:
    paths: list[str] = []

    def keep(match: re.Match[str]) -> str:
        if _PRODUCTS.fullmatch(match["path"]):
            return match["path"].replace(".", " ")
        if _HOST.fullmatch(match["path"]) or ".." in match["path"].split("/"):
            return " code "
        paths.append(match["path"].removeprefix("./"))
        return f"⟦{len(paths) - 1}⟧"

    marked = _CODE.sub("code", _QUOTED.sub(keep, body))
    return _BARE.sub(keep, marked), paths


def _line(sentence: str, paths: list[str], *, is_item: bool) -> Line:
    """The sentence with its own paths, numbered from 0."""
    kept: list[str] = []

    def renumber(match: re.Match[str]) -> str:
        kept.append(paths[int(match[0][1:-1])])
        return f"⟦{len(kept) - 1}⟧"

    text = PLACEHOLDER.sub(renumber, sentence)
    source = PLACEHOLDER.sub(lambda match: kept[int(match[0][1:-1])], text)
    return Line(text, kept, is_item, source)
