"""Object stores: whole or not at all, under names of any kind."""

from __future__ import annotations

import asyncio
import itertools
from datetime import timedelta
from pathlib import Path

import pytest

from libs.bus.ports import Bus
from libs.chassis.clock import SystemClock

CLOCK = SystemClock()
_numbers = itertools.count(1)


@pytest.mark.parametrize("size", [0, 1, 128 * 1024, 128 * 1024 + 1, 5_000_000])
async def test_bytes_of_any_size_come_back(bus: Bus, tmp_path: Path, size: int) -> None:
    name = f"tenant/größe {next(_numbers)}"
    data = bytes(number % 251 for number in range(1000)) * (size // 1000) + b"x" * (size % 1000)
    store, file = bus.store("workspaces"), tmp_path / "file"
    await store.put(name, data)
    assert await store.get(name) == data
    assert await store.get_file(name, file)
    assert file.read_bytes() == data
    await store.put_file(f"{name} again", file)
    assert await store.get(f"{name} again") == data


async def test_a_name_can_be_given_other_bytes(bus: Bus) -> None:
    store, name = bus.store("workspaces"), f"again {next(_numbers)}"
    for data in (b"first" * 100_000, b"second", b"second", b"third" * 50_000):
        await store.put(name, data)
        assert await store.get(name) == data


async def test_an_unknown_name_has_no_bytes(bus: Bus, tmp_path: Path) -> None:
    assert await bus.store("blobs").get("never/put") is None
    assert not await bus.store("blobs").get_file("never/put", tmp_path / "nothing")


async def test_names_are_listed_and_removed_with_their_bytes(bus: Bus) -> None:
    store, mark = bus.store("workspaces"), f"listed {next(_numbers)}"
    names = [f"{mark}/ä", f"{mark}/b", f"{mark}/c..d"]
    for name in names:
        await store.put(name, b"x" * 300_000)
    assert await store.names(f"{mark}/") == sorted(names)
    for _ in range(2):
        await store.remove(names[0])
    assert await store.get(names[0]) is None
    assert await store.names(f"{mark}/") == sorted(names[1:])
    await store.put(names[0], b"again")
    assert await store.get(names[0]) == b"again"


async def test_only_what_was_not_stored_again_is_removed_as_old(bus: Bus) -> None:
    store, name = bus.store("blobs"), f"old {next(_numbers)}"
    await store.put(name, b"x" * 300_000)
    stored_by = CLOCK.now()
    assert not await store.remove_older(name, stored_by - timedelta(seconds=60))
    # The same bytes again renew it.
    await store.put(name, b"x" * 300_000)
    assert not await store.remove_older(name, stored_by - timedelta(seconds=1))
    assert await store.get(name) == b"x" * 300_000
    later = CLOCK.now() + timedelta(days=400)
    removed, _ = await asyncio.gather(store.remove_older(name, later), store.put(name, b"x" * 300_000))
    # Whoever was faster, what was stored last is whole, or nothing is.
    found = await store.get(name)
    assert found in (None, b"x" * 300_000)
    assert removed or found is not None
    await store.put(name, b"y")
    assert await store.remove_older(name, later)
    assert await store.get(name) is None
    assert not await store.remove_older(name, later)
    assert name not in await store.names()
    await store.put(name, b"again")
    assert await store.get(name) == b"again"
