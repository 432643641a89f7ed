"""Fixtures of the gateway's tests: one that serves, and a client of it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from libs.bus.ports import Bus
from tests.service.gateway_served import Served, gateway, http_client


@pytest.fixture
async def served(bus: Bus, tmp_path: Path) -> AsyncIterator[Served]:
    async with gateway(bus, tmp_path) as running:
        yield running


@pytest.fixture
async def client(served: Served) -> AsyncIterator[httpx.AsyncClient]:
    async with http_client(served) as made:
        yield made
