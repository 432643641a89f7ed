"""The only door to NATS; its types and exceptions stop here."""

import sys
from types import ModuleType
from typing import cast

# The client imports aiohttp, where it is installed, for connections over websockets, which nobody here makes: a fourth of
# what a service needs to start. A name that is `None` is one that cannot be imported.
if "aiohttp" not in sys.modules:
    sys.modules["aiohttp"] = cast("ModuleType", None)
    try:
        import nats.aio.transport  # noqa: F401 # pyright: ignore[reportUnusedImport] - only the first import looks for aiohttp
    finally:
        del sys.modules["aiohttp"]
