"""The judge's endpoint: one question, one answer.

Invariant: the verifier's only importer of openai and its HTTP client; their types and exceptions stop here. It never
retries: `judge.py` is the one owner of retries. Importing it takes a second, so `judge.py` does it when the first review comes.
"""

from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager

import httpx2
import openai
from openai.types.chat import ChatCompletionMessageParam

from services.verifier.review.asking import Access, Answered, Faulty
from services.verifier.review.brief import Brief

CONNECT_TIMEOUT_S = 10.0
# A model may think for long before its first byte; the judge's patience ends the whole.
READ_TIMEOUT_S = 120.0
WRITE_TIMEOUT_S = 60.0
# What is read of an answer, what was thought before it included.
ANSWER_CHARS_MAX = 200_000
_TRANSIENT = frozenset({408, 409, 425, 429})
_NOT_TRANSIENT = frozenset({501, 505})


@asynccontextmanager
async def open_endpoint(access: Access) -> AsyncGenerator["Endpoint"]:
    """A connection for one review."""
    timeout = httpx2.Timeout(
        connect=CONNECT_TIMEOUT_S, read=READ_TIMEOUT_S, write=WRITE_TIMEOUT_S, pool=CONNECT_TIMEOUT_S
    )
    async with openai.AsyncOpenAI(
        api_key=access.key, base_url=access.base_url, max_retries=0, timeout=timeout
    ) as client:
        yield Endpoint(client, access.model)


class Endpoint:
    """Asks one model."""

    def __init__(self, client: openai.AsyncOpenAI, model: str) -> None:
        self._client, self._model = client, model

    async def ask(self, brief: Brief, *, plain: bool) -> Answered:
        """What the model answers, streamed, because some models answer in no other way. `plain`: in one message of the user and
        without wishes, which every endpoint takes. Raises `Faulty`."""
        try:
            return await self._asked(brief, plain=plain)
        except openai.APIStatusError as error:
            status = error.status_code
            headers = {name.lower(): value for name, value in error.response.headers.items()}
            transient = status in _TRANSIENT or (status >= 500 and status not in _NOT_TRANSIENT)
            raise Faulty(f"HTTP {status}: {error.message}", status, headers, transient=transient) from error
        except (openai.APIError, httpx2.RequestError, ValueError, AttributeError, TypeError) as error:
            # No connection, an error inside of the stream, or what is no stream of an answer.
            told = str(error.__cause__ or error) or type(error).__name__
            raise Faulty(told, 0, {}, transient=True) from error

    async def _asked(self, brief: Brief, *, plain: bool) -> Answered:
        messages = list(_messages(brief, plain=plain))
        stream = await self._client.chat.completions.create(
            model=self._model,
            messages=messages,
            stream=True,
            stream_options=openai.omit if plain else {"include_usage": True},
        )
        pieces: list[str] = []
        length = input_tokens = output_tokens = 0
        async with stream:
            async for chunk in stream:
                if chunk.usage is not None:
                    input_tokens, output_tokens = chunk.usage.prompt_tokens, chunk.usage.completion_tokens
                piece = (chunk.choices[0].delta.content or "") if chunk.choices else ""
                pieces.append(piece)
                length += len(piece)
                if length > ANSWER_CHARS_MAX:
                    break
        return Answered("".join(pieces), input_tokens, output_tokens)


def _messages(brief: Brief, *, plain: bool) -> Iterator[ChatCompletionMessageParam]:
    if plain:
        yield {"role": "user", "content": f"{brief.system}\n\n{brief.user}"}
        return
    yield {"role": "system", "content": brief.system}
    yield {"role": "user", "content": brief.user}
