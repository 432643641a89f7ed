"""When a new start helps a server whose disk was full."""

from __future__ import annotations

import pytest

from deploy.dev.server_disk import PLENTY_BYTES, ROOM_BYTES, start_helps


@pytest.mark.parametrize("free,ill,at_start,helps", [
    (ROOM_BYTES - 1, True, 0, False),
    (ROOM_BYTES, True, 0, True),
    (ROOM_BYTES, False, 0, True),
    (ROOM_BYTES, False, ROOM_BYTES, False),
    (2 * ROOM_BYTES, False, ROOM_BYTES, True),
    (10 * PLENTY_BYTES, False, PLENTY_BYTES, False),
    (10 * PLENTY_BYTES, True, PLENTY_BYTES, True),
])  # fmt: skip
def test_a_server_is_started_again_only_where_there_is_room_and_it_would_find_more_of_it(
    free: int, ill: bool, at_start: int, helps: bool
) -> None:
    assert start_helps(free, ill=ill, at_start=at_start) is helps
