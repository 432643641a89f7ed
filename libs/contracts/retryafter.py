"""How long somebody who refused asks to wait: the headers of an HTTP response. PURE.

Invariant: what is no sensible time is no wish.
"""

import email.utils
import math
from collections.abc import Mapping
from datetime import UTC, datetime


def retry_after_s(headers: Mapping[str, str], now: datetime) -> float | None:
    """How long the provider asks to wait: `retry-after-ms`, or `retry-after` in seconds or as an HTTP date. What is no
    sensible time is no wish."""
    milliseconds = _number(headers.get("retry-after-ms", ""))
    if milliseconds is not None:
        return milliseconds / 1000
    text = headers.get("retry-after", "")
    seconds = _number(text)
    if seconds is not None:
        return seconds
    try:
        at = email.utils.parsedate_to_datetime(text)
    except ValueError:
        return None
    return max(0.0, (at.replace(tzinfo=at.tzinfo or UTC) - now).total_seconds())


def _number(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) and number >= 0 else None
