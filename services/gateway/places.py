"""Where the workspace of a run can be looked at: which live host has its folder, or can unpack its last snapshot.

Invariant: the workspace's own log says where its newest state lies, by a leader read; a host is asked only for that.
"""

from typing import NamedTuple

import msgspec

from libs.bus.ports import Bus, LogKey
from libs.contracts.envelope import decode_events
from libs.contracts.errors import UNREADABLE, NobodyThere
from libs.contracts.events import WorkspaceAttached
from libs.contracts.ids import SHARDS, workspace_id
from libs.contracts.looks import Answer, Look, NotSeen, Question
from libs.contracts.run import RunState
from libs.contracts.tools import HostCatalog
from libs.contracts.workspaces import Saved
from services.gateway.roster import Roster

# A walk of a large tree, or the first look into a snapshot that has to be fetched.
LOOK_TIMEOUT_S = 30.0
# What a client waits for a host to come up.
_HOST_COMES_S = 5


class Place(NamedTuple):
    """A host that is asked, and the snapshot it is asked for (`None`: the folder itself)."""

    boot: str
    saved: Saved | None


class Places:
    """Finds places and asks them."""

    def __init__(self, bus: Bus, roster: Roster) -> None:
        self._bus, self._roster = bus, roster

    async def of(self, state: RunState) -> Place | None:
        """Where to look; `None` when no host has ever held the workspace. Raises `NobodyThere`."""
        named = await self._named(state)
        if named is None or (not named.host and named.saved is None):
            return None
        hosts: list[HostCatalog] = []
        for fresh in (False, True):
            hosts = [host for host in await self._roster.catalogs(fresh=fresh) if host.workspaces]
            place = _place_in(hosts, named)
            if place is not None:
                return place
        told = "no tool host is up that could show the workspace; start one"
        if hosts:
            told = (
                f"the workspace lies on the machine of {named.replica}, which is down, and was never kept elsewhere; "
                "start its tool host again"
            )
        raise NobodyThere(told, retry_after_s=_HOST_COMES_S)

    async def ask(self, state: RunState, place: Place, question: Question) -> Answer:
        """The host's answer. Raises `BusUnavailable` when it does not come."""
        look = Look(
            tenant=state.tenant,
            workspace=state.workspace,
            workspace_id=_identifier(state),
            question=question,
            saved=place.saved,
        )
        subject = self._bus.subjects.call_look(place.boot)
        reply = await self._bus.wire.request(subject, msgspec.json.encode(look), timeout_s=LOOK_TIMEOUT_S)
        try:
            return _answers.decode(reply)
        except UNREADABLE:
            return NotSeen(reason="fault", message="its host answers in a form that this gateway cannot read")

    async def _named(self, state: RunState) -> WorkspaceAttached | None:
        """What the newest record of the workspace's log says."""
        tail = await self._bus.log.tail(LogKey(state.tenant, _identifier(state)))
        newest = decode_events(tail)[-1].body if tail is not None else None
        return newest if isinstance(newest, WorkspaceAttached) else None


def _place_in(hosts: list[HostCatalog], named: WorkspaceAttached) -> Place | None:
    folder = named.held or named.root
    near = [host.boot for host in hosts if (host.root == folder if folder else host.boot == named.host)]
    if near:
        return Place(named.host if named.host in near else near[0], None)
    if not hosts or named.saved is None:
        return None
    # Always the same host while they are the same: it has unpacked the snapshot already.
    return Place(min(host.boot for host in hosts), named.saved)


def _identifier(state: RunState) -> str:
    return workspace_id(SHARDS, state.tenant, state.workspace)


_answers = msgspec.json.Decoder(Answer)
