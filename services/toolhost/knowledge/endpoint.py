"""Embeddings of a model behind an OpenAI-compatible endpoint (`POST <base>/embeddings`).

Invariant: what comes back is a vector of one length for each text, or a `KnowledgeFault` that says what to do; the key
goes into one header and into no message. How many texts a request may hold is learned from what the endpoint refuses.
"""

import asyncio
import math
from collections.abc import Sequence
from typing import NamedTuple

import httpx
import msgspec

from libs.policy.masking import masked
from services.toolhost.errors import KnowledgeFault
from services.toolhost.knowledge.ports import Vector

# Texts of a request; endpoints that take fewer (ten is common) say so with one of these.
_BATCH_MAX = 64
_TOO_MANY = frozenset({400, 413, 422})
# What may pass: waited out while an index run is at it, half a minute together, and not while somebody asks.
_PASSING = frozenset({408, 409, 425, 429, 500, 502, 503, 504, 529})
_WAITS_S = (1.0, 2.0, 4.0, 8.0, 16.0)
_WAIT_S_MAX = 30.0
_TIMEOUT_S = 30.0
# 64 vectors of 8,192 numbers with every digit.
_ANSWER_BYTES_MAX = 16 << 20
_TOLD_CHARS_MAX = 300


class EndpointSettings(NamedTuple):
    model: str
    base_url: str
    api_key: str


class _Embedding(msgspec.Struct, frozen=True):
    index: int
    embedding: list[float]


class _Answer(msgspec.Struct, frozen=True):
    data: list[_Embedding]


class _Passing(Exception):
    """One try failed in a way that another may not. `after_s` is what the endpoint asks for."""

    def __init__(self, told: str, after_s: float = 0.0) -> None:
        super().__init__(told)
        self.after_s = after_s


class EndpointEmbedder:
    """The model; one connection pool until it is closed."""

    def __init__(self, settings: EndpointSettings) -> None:
        self._settings = settings
        self._http = httpx.AsyncClient(timeout=_TIMEOUT_S)
        self._batch_max = _BATCH_MAX

    @property
    def model(self) -> str:
        return self._settings.model

    async def embed(self, texts: Sequence[str], *, patient: bool) -> list[Vector]:
        vectors: list[Vector] = []
        while len(vectors) < len(texts):
            batch = texts[len(vectors) : len(vectors) + self._batch_max]
            vectors += await self._batch(batch, _WAITS_S if patient else ())
        if len({len(vector) for vector in vectors}) > 1:
            raise self._fault("its vectors differ in length")
        return vectors

    async def close(self) -> None:
        await self._http.aclose()

    async def _batch(self, texts: Sequence[str], waits_s: Sequence[float]) -> list[Vector]:
        """The vectors of a request, or of its first part where the endpoint takes no more at once."""
        for wait_s in (*waits_s, None):
            try:
                status, body = await self._asked(texts)
            except _Passing as passing:
                if wait_s is None:
                    raise self._fault(str(passing)) from passing
                await asyncio.sleep(min(max(wait_s, passing.after_s), _WAIT_S_MAX))
                continue
            if status in _TOO_MANY and len(texts) > 1:
                self._batch_max = max(1, len(texts) // 2)
                return await self._batch(texts[: self._batch_max], waits_s)
            if status != 200:
                raise self._fault(f"status {status}: {self._told(body)}")
            return self._vectors(body, len(texts))
        raise AssertionError("the last try answers or raises")

    async def _asked(self, texts: Sequence[str]) -> tuple[int, bytes]:
        settings = self._settings
        request = {"model": settings.model, "input": list(texts), "encoding_format": "float"}
        headers = {"Authorization": f"Bearer {settings.api_key}"} if settings.api_key else {}
        url = f"{settings.base_url.rstrip('/')}/embeddings"
        body = bytearray()
        try:
            async with self._http.stream("POST", url, json=request, headers=headers) as response:
                async for block in response.aiter_bytes():
                    body += block
                    if len(body) > _ANSWER_BYTES_MAX:
                        raise self._fault(f"its answer is larger than {_ANSWER_BYTES_MAX >> 20} MiB")
        except httpx.TransportError as error:
            raise _Passing(f"it does not answer ({type(error).__name__}: {error})") from error
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise self._fault(f"{type(error).__name__}: {error}") from error
        if response.status_code in _PASSING:
            after = response.headers.get("retry-after", "")
            told = f"status {response.status_code}: {self._told(bytes(body))}"
            raise _Passing(told, float(after) if after.isdigit() else 0.0)
        return response.status_code, bytes(body)

    def _vectors(self, body: bytes, count: int) -> list[Vector]:
        try:
            answer = msgspec.json.decode(body, type=_Answer)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            raise self._fault(f"its answer is no list of embeddings: {self._told(body)}") from None
        found = {one.index: one.embedding for one in answer.data}
        vectors: list[Vector] = [found.get(index, []) for index in range(count)]
        if not all(vector and all(map(math.isfinite, vector)) for vector in vectors):
            raise self._fault(
                f"it gave {len(answer.data)} embeddings for {count} texts, or numbers that are none"
            )
        return vectors

    def _told(self, body: bytes) -> str:
        """The beginning of what it says, without secrets."""
        text = masked(body, [self._settings.api_key.encode()]).decode("utf-8", "replace")
        return " ".join(text.split())[:_TOLD_CHARS_MAX]

    def _fault(self, told: str) -> KnowledgeFault:
        return KnowledgeFault(
            f"the embedding model {self._settings.model!r} cannot be used: {told}; see HYBRID_EMBED_MODEL and its endpoint"
        )
