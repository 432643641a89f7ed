"""What all events share.

Invariant: an event is one frozen struct; its public name and whether it is `life` are of its kind, never of one event.
"""

from typing import ClassVar

import msgspec


class EventBody(msgspec.Struct, frozen=True, kw_only=True):
    """`type` is the public name; `life` marks those that change who must act next."""

    type: ClassVar[str]
    life: ClassVar[bool] = False
