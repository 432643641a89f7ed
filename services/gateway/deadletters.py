"""Dead letters over HTTP: what nobody could handle, with its reason, for the operators of a deployment.

Invariant: a letter is shown whatever is in it (bytes that are no text are escaped), and replaying one that is gone
already is a 404, never a second message.
"""

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from libs.bus.ports import DeadLetter, DeadLetters
from libs.contracts.errors import UNREADABLE, InvalidCursor, NotFound, ValidationFailed
from libs.contracts.http import Nothing
from libs.contracts.ids import is_token
from libs.contracts.views import DeadLetterList, DeadLetterReplayed, DeadLetterView
from services.gateway import edge

# A page of a console; each letter may be read from a message of 1 MiB.
LETTERS_LIMIT_DEFAULT, LETTERS_LIMIT_MAX = 50, 200
# What a list shows of a message: enough to see what it was.
BODY_CHARS_MAX = 4000


class DeadLettersApi:
    """List and replay. `operator` is who asks; letters of all tenants are an operator's to see."""

    def __init__(self, letters: DeadLetters) -> None:
        self._letters = letters

    async def find(self, request: Request, operator: str) -> Response:
        del operator
        limit = edge.number(request, "limit", default=LETTERS_LIMIT_DEFAULT, least=1, most=LETTERS_LIMIT_MAX)
        kind = edge.text(request, "kind")
        if kind is not None and not is_token(kind):
            problem = "must be the kind of a dead letter, as the list shows it"
            raise ValidationFailed(f"kind {problem}", details=[{"field": "kind", "message": problem}])
        before = edge.query_sequence(request, "cursor")
        if before == 0:
            raise InvalidCursor("this cursor is none of ours; take next_cursor as it was given")
        page = await self._letters.newest(before=before, limit=limit, kind=kind)
        more = str(page.next_before) if page.next_before is not None else None
        return edge.answer(
            DeadLetterList(dead_letters=[_view(one) for one in page.letters], next_cursor=more)
        )

    async def replay(self, request: Request, operator: str) -> Response:
        del operator
        await edge.body_of(request, Nothing)
        text = str(request.path_params["letter_id"])
        try:
            sequence = edge.sequence("letter_id", text) or 0
        except InvalidCursor:
            sequence = 0
        if not sequence:
            raise NotFound(f"there is no dead letter {text[:20]!r}")
        letter = await self._letters.replay(sequence)
        return edge.answer(DeadLetterReplayed(id=str(letter.sequence), subject=letter.origin), status=202)


class _Named(msgspec.Struct):
    """What most messages of the bus say of their run."""

    tenant: str | None = None
    run_id: str | None = None


def _view(letter: DeadLetter) -> DeadLetterView:
    try:
        named = msgspec.json.decode(letter.body, type=_Named)
    except UNREADABLE:
        named = _Named()
    tenant = letter.subject.rpartition(".")[2] if letter.kind == "rejected" else named.tenant
    return DeadLetterView(
        id=str(letter.sequence),
        kind=letter.kind,
        at=letter.at,
        reason=letter.reason,
        subject=letter.origin,
        tenant=tenant,
        run_id=named.run_id,
        body=letter.body.decode("utf-8", "backslashreplace")[:BODY_CHARS_MAX],
        body_bytes=len(letter.body),
    )
