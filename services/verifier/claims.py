"""What an answer says was written. PURE: text in, claims out.

Invariant: a sentence counts only when it says in the past, of the run itself, that a named file was written or changed;
whatever could mean something else (plans, negations, questions, other people's work, quoted code) is no claim. A claim
that is missed costs nothing, one that is invented fails an honest run.
"""

import re
from typing import NamedTuple

from services.verifier.mentions import PLACEHOLDER, Line, lines_of

# An answer is a page or two; what lies beyond is a report that quotes files rather than says what was done.
ANSWER_CHARS_MAX = 40_000
CLAIMS_MAX = 100
_GAP_CHARS_MAX = 120


class Claim(NamedTuple):
    """A path that the answer says was written, and the line that says it."""

    path: str
    sentence: str


class _Verb(NamedTuple):
    """`direct`: a file can be its object ("created x.py"); `prepositions` lead to a file ("fixed the bug in x.py")."""

    direct: bool
    prepositions: str


_IN = "in|inside|within|at|under"
_CREATE = _Verb(direct=True, prepositions=f"{_IN}|as")
_SAVE = _Verb(direct=True, prepositions=f"{_IN}|to|into|as")
_STORE = _Verb(direct=False, prepositions=f"{_IN}|to|into|as")
_ADD = _Verb(direct=True, prepositions=f"{_IN}|to|into")
_CHANGE = _Verb(direct=True, prepositions=_IN)
_FIX = _Verb(direct=True, prepositions=_IN)
_MOVE = _Verb(direct=False, prepositions="to|into|as")
_REMOVE = _Verb(direct=False, prepositions="from|in")
_MADE = _Verb(direct=False, prepositions="in|to|inside|within")
_VERBS: dict[str, _Verb] = {
    **dict.fromkeys(("created", "generated", "produced", "introduced", "implemented"), _CREATE),
    **dict.fromkeys(("wrote", "written", "saved"), _SAVE),
    **dict.fromkeys(("stored", "exported", "dumped", "appended", "inserted"), _STORE),
    "added": _ADD,
    **dict.fromkeys(
        (
            *("updated", "modified", "changed", "edited", "altered", "adjusted", "refactored", "rewrote"),
            *("rewritten", "patched", "extended", "improved", "corrected", "reformatted", "simplified"),
        ),
        _CHANGE,
    ),
    **dict.fromkeys(("fixed", "repaired", "resolved"), _FIX),
    **dict.fromkeys(("moved", "renamed", "copied"), _MOVE),
    **dict.fromkeys(("removed", "deleted", "dropped"), _REMOVE),
    "made": _MADE,
    "applied": _MADE,
}
_WORDS = "|".join(_VERBS)
_VERB = re.compile(rf"\b({_WORDS})\b", re.IGNORECASE)
_CHANGED = (
    "created|added|updated|modified|changed|edited|rewritten|written|fixed|refactored|patched|saved|generated"
)

_ADVERBS = "also|now|just|then|successfully|carefully|finally|manually|only|first|next|newly|already|both|all"
_LEADS = (
    "so|then|now|next|finally|first|firstly|second|secondly|third|lastly|also|just|and|done|yes|ok|okay|great|additionally"
    "|afterwards|furthermore|further|in addition|to (?:fix|do|solve|address|resolve|achieve) (?:this|that|it|the \\w+)"
)
_FILES = r"(?:(?:the |new )*(?:files?|paths?))"
# What may stand between the beginning of a clause and its verb, when the run speaks of itself.
_SELF = re.compile(
    rf"(?:(?:{_LEADS})[ ,]*)*(?:(?P<self>I|we)(?:['\u2019]ve| have| had)?|{_FILES})?(?: ?(?:{_ADVERBS}))*",
    re.IGNORECASE,
)
_CLAUSE_START = re.compile(r"[,;:(\u2014\u2013!]|\s-\s|\b(?:and|then|but|plus)\b", re.IGNORECASE)
_SELF_WORD = re.compile(r"\b(?:I|we)\b")
_OTHERS = re.compile(
    r"\b(?:you|your|they|he|she|who|user|someone|somebody|colleague|developer|author)\b", re.IGNORECASE
)
_UNREAL = re.compile(
    r"\b(?:if|unless|whether|would|should|could|might|may|will|can|cannot|must|not|never|nothing|failed|unable|without"
    r"|instead|rather|except|suggest\w*|recommend\w*|please|needs?|want\w*|supposed|previously|earlier|originally"
    r"|yesterday|unchanged|untouched|no changes?)\b|n['\u2019]t\b",
    re.IGNORECASE,
)
_SUBORDINATE = re.compile(
    r"(?<![\w-])(?:so|that|which|because|when|where|while|who|whose|if|as (?!well)|since|using|by|via|per|based|like|than|for"
    r"|nothing|no|none|except|not|without|other|apart|besides|instead|rather|but|until|before|after)(?![\w-])",
    re.IGNORECASE,
)
_PARTICIPLE = re.compile(r"\b(?:\w+ed|found|seen|shown|given|held|kept|known|written|used)$", re.IGNORECASE)
_POINTER = re.compile(
    r"\b(?:links?|references?|pointers?|calls?|imports?|paths?|response|answer|similar|respect|according)$",
    re.IGNORECASE,
)
_FILLER = (
    r"(?:a|an|the|new|my|our|this|that|following|files?|scripts?|modules?|tests?|unit|python|config|configuration|document"
    r"|page|called|named|empty|small|simple|short|single|main|entire|whole|existing|its|both|two|three|only|also|source"
    r"|helper|text|markdown|report|summary|output|package|it|them|everything|code|[:,(\"'=])"
)
_DIRECT_GAP = re.compile(rf"\s*(?:{_FILLER}\s*)*", re.IGNORECASE)
_NEXT_GAP = re.compile(
    rf"\s*(?:\([^()]{{0,80}}\))?\s*(?:,|and|&|\+|plus|as well as|/)[\s,]*(?:(?:and|{_IN}|to|into)\s+)*(?:{_FILLER}\s*)*",
    re.IGNORECASE,
)
_TO_ANOTHER = re.compile(r"\s*(?:to|into|from|\u2192|->)\b", re.IGNORECASE)
_TESTS = re.compile(r"\btests?\b|fail", re.IGNORECASE)
_TEST_PATH = re.compile(r"(?:^|/)tests?/|(?:^|/)test_|_test\.|\.test\.|\.spec\.")
_PROSE_PATH = re.compile(r"\.(?:md|txt|rst|log)$", re.IGNORECASE)
_CHANGE_NOUN = re.compile(
    r"\b(?:changes?|edits?|fix(?:es)?|modifications?|updates?|adjustments?|patch(?:es)?|corrections?)\b"
)
_PASSIVE = re.compile(
    rf"(?:['\u2019]s)?(?:\s*\([^()]{{0,80}}\))?,?\s+(?:was|were|has been|have been|is now|are now|has now been|have now been)"
    rf"(?: (?:{_ADVERBS}))*\s+(?:{_CHANGED})\b(?!\s+(?:by\s+(?!me\b|us\b)|in (?:version|commit|v\d)|before\b|from\b))",
    re.IGNORECASE,
)
_STORED_IN = re.compile(
    rf"\b(?:was|were|has been|have been)(?: (?:{_ADVERBS}))* (?:saved|written|stored|exported|appended|added)"
    rf" (?:to|into|in|as|at|under)\s+(?:{_FILLER}\s*)*$",
    re.IGNORECASE,
)
_BY_OTHERS = re.compile(r"\s*by\s+(?!me\b|us\b)", re.IGNORECASE)
_SUBJECT_BEFORE = re.compile(
    r"\b(?:for|of|from|with|by|than|like|on|about|using|to|when|if|after|once|before|since|as)\s+(?:the\s+)?$"
)
_LABEL = re.compile(
    rf"\s*(?:\([^()]{{0,80}}\))?\s*(?::|\u2014|\u2013|-|\u2192|=>|\()\s*(?:I )?(?:(?:{_ADVERBS}) )*(?:{_WORDS}|new file|new\b)",
    re.IGNORECASE,
)
_HEADER = re.compile(
    rf"(?:.*\b(?:{_CHANGED})\b.*\bfiles?\b.*|.*\bfiles?\b.*\b(?:{_CHANGED})\b.*|.*\bmade\b.*\bchanges\b.*):",
    re.IGNORECASE,
)


def claims_in(answer: str) -> list[Claim]:
    """The claims of an answer, each path once, in the order of the text."""
    found: dict[str, Claim] = {}
    listing = False
    for line in lines_of(answer[:ANSWER_CHARS_MAX]):
        if listing and not line.is_item:
            listing = False
        for path in _claimed(line, listing=listing):
            found.setdefault(path, Claim(path, line.source))
        if _HEADER.fullmatch(line.text) and not line.paths and not _UNREAL.search(line.text):
            listing = True
    return list(found.values())[:CLAIMS_MAX]


def _claimed(line: Line, *, listing: bool) -> list[str]:
    """The claimed paths of one sentence, whose paths are placeholders in `line.text`."""
    if not line.paths or line.text.rstrip().endswith("?"):
        return []
    spots = list(PLACEHOLDER.finditer(line.text))
    claimed: set[int] = set()
    if spots[0].start() == 0 and not _UNREAL.search(line.text):
        rest = line.text[spots[0].end() :]
        if (listing and line.is_item) or _LABEL.match(rest):
            claimed.add(0)
    accepted = False
    for verb in _VERB.finditer(line.text):
        if _OTHERS.search(line.text[: verb.start()]) and not _SELF_WORD.search(line.text[: verb.start()]):
            continue
        if _speaks_of_itself(line.text[: verb.start()], accepted=accepted):
            accepted = True
            claimed |= _objects(line, spots, verb)
    claimed |= _passive_subjects(line, spots)
    return [line.paths[index] for index in sorted(claimed)]


def _speaks_of_itself(prefix: str, *, accepted: bool) -> bool:
    """Whether the verb behind `prefix` has the run as its subject, named or understood."""
    starts = list(_CLAUSE_START.finditer(prefix))
    begin = starts[-1].end() if starts else 0
    clause = prefix[begin:].strip()
    match = _SELF.fullmatch(clause)
    if match is None:
        return False
    if match["self"] or not starts:
        return True
    before = prefix[:begin]
    if accepted:
        return not _UNREAL.search(before[before.rfind(",") + 1 :])
    # Coordinated ("I read a and updated b"), or behind a lead-in that is no sentence of its own ("Done: created b").
    subjects = [*_SELF_WORD.finditer(before)]
    if subjects:
        return not _UNREAL.search(before) and not _OTHERS.search(before[subjects[-1].end() :])
    return _SELF.fullmatch(before[: starts[-1].start()].strip()) is not None


def _objects(line: Line, spots: list[re.Match[str]], verb: re.Match[str]) -> set[int]:
    """The paths that the verb is about."""
    kind, word = _VERBS[verb[1].lower()], verb[1].lower()
    claimed: set[int] = set()
    end = verb.end()
    for index, spot in enumerate(spots):
        if spot.start() < verb.end():
            continue
        gap, after = line.text[end : spot.start()], line.text[spot.end() :]
        if claimed:
            if not _NEXT_GAP.fullmatch(gap):
                break
        elif not _is_object(kind, word, gap, after, line.paths[index]):
            break
        claimed.add(index)
        end = spot.end()
    return claimed


def _is_object(kind: _Verb, word: str, gap: str, after: str, path: str) -> bool:
    if len(gap) > _GAP_CHARS_MAX:
        return False
    if kind is _FIX and (_TEST_PATH.search(path) or _TESTS.search(gap)):
        # "Fixed the failing test in x" says that it passes, not that it was edited.
        return False
    if kind is _MADE and not _CHANGE_NOUN.search(gap):
        return False
    if kind.direct and _DIRECT_GAP.fullmatch(gap):
        return not (word == "added" and _TO_ANOTHER.match(after))
    lead = re.fullmatch(
        rf"(?P<what>.*?)\b(?P<by>{kind.prepositions})\s+(?:{_FILLER}\s*)*", gap, re.IGNORECASE
    )
    if lead is None or _SUBORDINATE.search(lead["what"]) or _UNREAL.search(gap):
        return False
    what = lead["what"].rstrip()
    if word in ("fixed", "resolved", "implemented", "made", "applied") and _PROSE_PATH.search(path):
        return False
    return not _PARTICIPLE.search(what) and not (lead["by"].lower() == "to" and _POINTER.search(what))


def _passive_subjects(line: Line, spots: list[re.Match[str]]) -> set[int]:
    """The paths of "a.py and b.py were updated" and of "the report was saved to a.md"."""
    claimed: set[int] = set()
    for index, spot in enumerate(spots):
        before = line.text[: spot.start()]
        if (stored := _STORED_IN.search(before)) and not _BY_OTHERS.match(line.text, spot.end()):
            if not (_UNREAL.search(before) or _SUBORDINATE.search(before[: stored.start()])):
                claimed.add(index)
            continue
        if not _PASSIVE.match(line.text, spot.end()):
            continue
        first = index
        while first and _NEXT_GAP.fullmatch(line.text[spots[first - 1].end() : spots[first].start()]):
            first -= 1
        before = line.text[: spots[first].start()]
        clause = before[max(before.rfind(","), before.rfind(";")) + 1 :]
        if (
            not _UNREAL.search(clause)
            and not _SUBJECT_BEFORE.search(before)
            and not _SUBORDINATE.search(clause)
        ):
            claimed |= set(range(first, index + 1))
    return claimed
