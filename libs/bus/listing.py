"""Which subjects a stream holds messages on, by the leader's word.

Invariant: what is listed was there at the time of its page; a listing is for sweeps and operators, never for a decision.
"""

import msgspec

from libs.bus.jetstream import JetStream, Refused

# A page of subjects that the leader lists at once.
_SUBJECTS_PAGE = 100_000


class _State(msgspec.Struct):
    subjects: dict[str, int] = {}


class _StreamInfo(msgspec.Struct):
    state: _State


async def subjects_of(js: JetStream, stream: str, subjects: str) -> list[str]:
    """All subjects of a stream that match a filter. Raises `Unavailable`."""
    return list(await counted_subjects(js, stream, subjects))


async def counted_subjects(js: JetStream, stream: str, subjects: str) -> dict[str, int]:
    """The same, with how many messages each has. Raises `Unavailable`."""
    found: dict[str, int] = {}
    while True:
        query = {"subjects_filter": subjects, "offset": len(found)}
        try:
            answer = await js.api_patiently(f"STREAM.INFO.{stream}", query)
        except Refused as refused:
            raise refused.translated() from refused
        page = msgspec.json.decode(answer, type=_StreamInfo).state.subjects
        found |= page
        if len(page) < _SUBJECTS_PAGE:
            return found
