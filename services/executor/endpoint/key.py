"""The endpoint's key: as it was configured at the start, and read again when the endpoint refuses it.

Invariant: a key goes to the endpoint and nowhere else; in what is kept or shown every key that was in use is masked.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Collection, Iterable
from typing import NamedTuple

from libs.chassis.logs import get_logger
from libs.contracts.errors import ConfigurationError
from libs.policy.masking import masked

# Keys that are still masked after they were replaced: what a run repeats of them is hardly older than that.
KEYS_REMEMBERED = 8

_log = get_logger("key")


class Configured(NamedTuple):
    """A key as it is configured now. `fixed`: by the process's own environment, which only a restart changes."""

    value: str
    fixed: bool


class Key:
    """The key of one endpoint, for all runs of a process. `reread` says how it is configured now (`None`: not at all);
    without it a key is what it is. `others` are secrets of the process that are masked too."""

    def __init__(
        self,
        value: str,
        reread: Callable[[], Configured | None] | None = None,
        *,
        others: Iterable[bytes] = (),
    ) -> None:
        self._value: str = value
        self._fixed = False
        self._reread, self._others = reread, tuple(others)
        self._used = deque([value.encode()], maxlen=KEYS_REMEMBERED)

    @property
    def renewable(self) -> bool:
        return self._reread is not None

    @property
    def secrets(self) -> Collection[bytes]:
        """What is masked wherever something is kept."""
        return (*self._used, *self._others)

    @property
    def advice(self) -> str:
        """What to do once the key was refused as it is configured now."""
        if self._fixed:
            return (
                "the key was read again and is the same: the executors have it from their environment, so start them with a "
                "valid one. One that stands in .env where they run is read again whenever it is refused"
            )
        return "the key was read again from .env where the executors run: a valid one there is used without a restart"

    async def current(self) -> str:
        return self._value

    async def renew(self) -> None:
        """Take the key as it is configured now. What cannot be read leaves it as it was."""
        if self._reread is None:
            return
        try:
            found = await asyncio.to_thread(self._reread)
        except (ConfigurationError, OSError, ValueError) as error:
            _log.warning("key.unreadable", reason=str(error))
            return
        changed = found is not None and found.value != self._value
        if found is not None:
            self._value, self._fixed = found.value, found.fixed
        if changed:
            self._used.append(self._value.encode())
        _log.warning("key.refused", read_again="another one" if changed else "the same")

    def hidden(self, text: str) -> str:
        """`text` without a secret. To be used before a text is cut, or joined to another one: behind it nobody sees that
        what stands in the middle was the beginning of a key."""
        return masked(text.encode("utf-8", "replace"), self.secrets).decode()
