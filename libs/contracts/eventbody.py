"""What all events share.

Invariant: an event is one frozen struct; its public name and what it means for its log are of its kind, never of one
event.
"""

from typing import ClassVar

import msgspec


class EventBody(msgspec.Struct, frozen=True, kw_only=True):
    """`type` is the public name; `life` marks those that change who must act next, `tombstone` those that end a log for
    good: what lies below is purged."""

    type: ClassVar[str]
    life: ClassVar[bool] = False
    tombstone: ClassVar[bool] = False
