"""What every test shares: the event loop that the services run on, and property tests without a stopwatch."""

from __future__ import annotations

import os
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from tests.fakes.bus import bus, nats_node

__all__ = ["anyio_backend", "bus", "nats_node"]

# How long an example takes says more about the machine than about the code. `make soak` asks for more of them.
settings.register_profile(
    "perdure",
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    max_examples=int(os.environ.get("EXAMPLES", "100")),
)
settings.load_profile("perdure")


@pytest.fixture(scope="session")
def anyio_backend() -> tuple[str, dict[str, Any]]:
    """Run async tests and fixtures on asyncio with uvloop, as the services do; wide enough for shared servers."""
    return "asyncio", {"use_uvloop": True}
