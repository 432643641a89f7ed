"""The liveness key of a process: what it says of itself, and the death that somebody else writes over it.

Invariant: a process is dead when, and only when, `dead` stands in its key by a leader's word (design, section 3).
"""

import msgspec


class LeaseValue(msgspec.Struct, frozen=True, kw_only=True):
    """The value of `replica.<boot>` in the leases bucket. `beat` counts renewals; `process_start` is in clock ticks since
    the machine's boot, 0: unknown. `silences`: for how many seconds each run of a project that the process holds has
    shown no sign of life; `None`: it does not say."""

    boot: str
    service: str
    replica: str
    host: str
    pid: int
    process_start: int
    slots: int
    free: int
    model_configured: bool
    dead: bool = False
    beat: int = 0
    info: dict[str, str] = {}
    silences: dict[str, float] | None = None
