"""Strings too large for a record: moved out before it is stored, put back before it is folded. Pure.

Invariant: `put_back(moved.body, moved.blobs) ` folds to the same as the events that were moved out of; what stays behind
is the beginning of each string, so an observer without access to the blobs still shows something true.

    {"payload": {"output": "<first 2,000 characters>"}, "blobs": {"/output": "<sha256 of the whole string>"}}
"""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple, TypeAlias, cast

import msgspec

from libs.contracts.envelope import (
    RECORD_BYTES_MAX,
    Event,
    RecordBody,
    WireEvent,
    encode_events,
)
from libs.contracts.errors import UNREADABLE, PerdureError, UnreadableRecord

# What stays of a moved string, for observers.
KEPT_CHARS = 2_000
# A string that is not much longer than what stays is not worth a blob.
MOVED_BYTES_MIN = 4 * KEPT_CHARS

# A digest with its pointer and their punctuation.
_DIGEST_BYTES = 128

Json: TypeAlias = "bool | int | float | str | list[Json] | dict[str, Json] | None"


class Moved(NamedTuple):
    """A record that fits, and the strings it names by digest (sha256 of their UTF-8 bytes, hexadecimal)."""

    body: bytes
    blobs: dict[str, bytes]


def move_out(batch: Sequence[Event]) -> Moved:
    """Encode a record, its largest strings moved out until it fits.

    Raises `PerdureError` when it is empty, has too many events, or is too large without its strings.
    """
    events = encode_events(batch)
    body = _encode(RecordBody(events=events))
    if len(body) <= RECORD_BYTES_MAX:
        return Moved(body, {})
    payloads = [_decode_payload(event.payload) for event in events]
    largest = sorted(
        (
            (len(_encode(text)), index, pointer, text)
            for index, payload in enumerate(payloads)
            for pointer, text in _strings(payload, "")
        ),
        reverse=True,
    )
    excess = len(body) - RECORD_BYTES_MAX
    blobs: dict[str, bytes] = {}
    moved: list[dict[str, str]] = [{} for _ in events]
    for size, index, pointer, text in largest:
        if excess <= 0 or size < MOVED_BYTES_MIN:
            break
        kept = text[:KEPT_CHARS]
        digest = hashlib.sha256(text.encode()).hexdigest()
        blobs[digest] = text.encode()
        moved[index][pointer] = digest
        _replace(payloads[index], pointer, kept)
        # What comes instead: the beginning, the pointer, the digest and their punctuation.
        excess -= size - len(_encode(kept)) - len(_encode(pointer)) - len(digest) - 32
    smaller = [
        msgspec.structs.replace(event, payload=msgspec.Raw(_encode(payload)), blobs=names) if names else event
        for event, payload, names in zip(events, payloads, moved, strict=True)
    ]
    body = _encode(RecordBody(events=smaller))
    if len(body) > RECORD_BYTES_MAX:
        raise PerdureError(
            f"a record of {len(body)} bytes without its large strings is over {RECORD_BYTES_MAX}; split it"
        )
    return Moved(body, blobs)


def fixed_bytes(value: object) -> int:
    """What a JSON value takes of a record when its large strings are moved out."""
    saved = 0
    for _, text in _strings(cast("Json", value), ""):
        # A character has six bytes at most, so most strings need no second look.
        if 6 * len(text) >= MOVED_BYTES_MIN and (size := len(_encode(text))) >= MOVED_BYTES_MIN:
            saved += max(0, size - len(_encode(text[:KEPT_CHARS])) - _DIGEST_BYTES)
    return len(_encode(value)) - saved


def digests(body: bytes) -> set[str]:
    """The blobs that a record names. Nearly all records name none, and that is told without decoding them."""
    if b'"blobs":{' not in body:
        return set()
    return {digest for event in _decode_record(body).events for digest in event.blobs.values()}


def put_back(body: bytes, blobs: Mapping[str, bytes]) -> bytes:
    """The body of a record with its strings whole again. Raises `UnreadableRecord` when one is missing or garbled."""
    events: list[WireEvent] = []
    for event in _decode_record(body).events:
        if event.blobs:
            payload = _decode_payload(event.payload)
            for pointer, digest in event.blobs.items():
                data = blobs.get(digest)
                if data is None or hashlib.sha256(data).hexdigest() != digest:
                    raise UnreadableRecord(
                        f"event {event.sequence} of {event.run_id} needs blob {digest}, which is missing or garbled"
                    )
                _replace(payload, pointer, data.decode())
            event = msgspec.structs.replace(event, payload=msgspec.Raw(_encode(payload)), blobs={})
        events.append(event)
    return _encode(RecordBody(events=events))


def _strings(value: Json, pointer: str) -> Iterator[tuple[str, str]]:
    """Every string below `value` with its JSON pointer (RFC 6901)."""
    match value:
        case str():
            yield pointer, value
        case list():
            for index, item in enumerate(value):
                yield from _strings(item, f"{pointer}/{index}")
        case dict():
            for key, item in value.items():
                yield from _strings(item, f"{pointer}/{key.replace('~', '~0').replace('/', '~1')}")
        case _:
            return


def _replace(payload: Json, pointer: str, text: str) -> None:
    *steps, last = [step.replace("~1", "/").replace("~0", "~") for step in pointer.split("/")[1:]]
    place = payload
    for step in steps:
        match place:
            case dict():
                place = place[step]
            case list():
                place = place[int(step)]
            case _:
                raise UnreadableRecord(f"there is no {pointer} in this payload")
    match place:
        case dict():
            place[last] = text
        case list():
            place[int(last)] = text
        case _:
            raise UnreadableRecord(f"there is no {pointer} in this payload")


def _decode_record(body: bytes) -> RecordBody:
    try:
        return _record_decoder.decode(body)
    except UNREADABLE as error:
        raise UnreadableRecord(f"a record does not decode: {error}") from error


def _decode_payload(payload: msgspec.Raw) -> Json:
    return msgspec.json.decode(payload)


_encode = msgspec.json.Encoder().encode
_record_decoder = msgspec.json.Decoder(RecordBody)
