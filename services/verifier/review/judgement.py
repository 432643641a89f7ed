"""What a judge answered, and the result of a review. PURE.

Invariant: a judgement is one JSON object of the asked form, whatever stands around it is none; without a judgement the
result says why, and passes nothing.
"""

import hashlib
import re
from typing import Literal, NamedTuple

import msgspec

from libs.contracts.checks import CheckResult, CheckStatus, ReviewCheck
from services.verifier.verdict import REVIEW

REASONS_MAX = 10
REASON_CHARS_MAX = 500
# What an answer may be without what was thought before it; a longer one is no verdict.
ANSWER_CHARS_MAX = 16_000
_SUBJECT_CHARS_MAX = 200
_THINKING, _THOUGHT = "<think>", "</think>"
_FENCED = re.compile(
    r"^[ \t]*```(?:json)?[ \t]*\n(?P<inside>.*?)^[ \t]*```[ \t]*$",
    re.DOTALL | re.MULTILINE | re.IGNORECASE,
)


class Judgement(NamedTuple):
    """What the judge decided, and why."""

    passed: bool
    reasons: tuple[str, ...]


class Spent(NamedTuple):
    """What judging took. Tokens are 0 where the endpoint does not tell them."""

    model: str
    input_tokens: int = 0
    output_tokens: int = 0
    duration_ms: int = 0


class _Said(msgspec.Struct, frozen=True):
    verdict: Literal["pass", "fail"]
    reasons: list[str]


def read(text: str) -> Judgement | None:
    """The judgement in an answer. `None`: there is none, or none that can be told from others."""
    text = text.strip()
    if text.startswith(_THINKING):
        text = text.partition(_THOUGHT)[2]
    if len(text) > ANSWER_CHARS_MAX:
        return None
    blocks = _FENCED.findall(text)
    if len(blocks) > 1:
        # One of them may be quoted from what it judges.
        return None
    try:
        said = msgspec.json.decode(blocks[0] if blocks else text, type=_Said)
    except (msgspec.MsgspecError, UnicodeEncodeError, RecursionError):
        return None
    reasons = tuple(" ".join(reason.split())[:REASON_CHARS_MAX] for reason in said.reasons if reason.strip())
    if said.verdict == "fail" and not reasons:
        return None
    return Judgement(said.verdict == "pass", reasons[:REASONS_MAX])


def review_result(
    check: ReviewCheck, judgement: Judgement, spent: Spent, *, commit: str, brief: str
) -> CheckResult:
    """A review that was made. `brief` is the digest of what the judge was told."""
    told = "; ".join(judgement.reasons)
    return CheckResult(
        kind=REVIEW,
        subject=_subject(check, spent.model),
        status=CheckStatus.PASSED if judgement.passed else CheckStatus.FAILED,
        reason=told or "the judge has nothing against it",
        output_tail=f"tokens of the judge: {spent.input_tokens} in, {spent.output_tokens} out",
        digests={"commit": commit, "brief": brief, "rubric": _digest(check)},
        duration_ms=spent.duration_ms,
    )


def unreviewed_result(
    check: ReviewCheck, why: str, *, model: str = "", commit: str = "", duration_ms: int = 0
) -> CheckResult:
    """A review that could not be made: nothing against the run, and no PASSED for it either (`verdict`)."""
    return CheckResult(
        kind=REVIEW,
        subject=_subject(check, model),
        status=CheckStatus.NOT_APPLICABLE,
        reason=f"no judgement: {why}",
        digests={"rubric": _digest(check), **({"commit": commit} if commit else {})},
        duration_ms=duration_ms,
    )


def _subject(check: ReviewCheck, model: str) -> str:
    rubric = " ".join(check.rubric.split())
    short = rubric if len(rubric) <= _SUBJECT_CHARS_MAX else f"{rubric[:_SUBJECT_CHARS_MAX]}…"
    return f"by {model}: {short}" if model else short


def _digest(check: ReviewCheck) -> str:
    return hashlib.sha256(check.rubric.encode("utf-8", "replace")).hexdigest()
