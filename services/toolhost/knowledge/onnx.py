"""Embeddings of a model in a folder of this machine, in the layout of sentence-transformers. The only importer of
`onnxruntime` and `tokenizers`.

Invariant: nothing is downloaded, and the model's name holds a digest of its weights, so that another model in the same
folder is another model.
"""

import hashlib
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, Protocol, cast

import msgspec
import numpy as np
import onnxruntime  # pyright: ignore[reportMissingTypeStubs] it has none; what is used of it has a Protocol below
from numpy.typing import NDArray
from tokenizers import Tokenizer

from services.toolhost.errors import KnowledgeFault
from services.toolhost.knowledge.ports import Vector
from services.toolhost.knowledge.threads import Threads

# Where the weights lie in such a folder.
_WEIGHTS = ("model.onnx", "onnx/model.onnx")
# What the common small models take, where the tokenizer does not say; a longer chunk is cut.
_TOKENS_MAX = 512
_BATCH_MAX = 16
# A tool host has other things to do as well.
_THREADS = 2
_DIGEST_CHARS = 12

_Numbers = NDArray[np.float32]


class _Input(Protocol):
    name: str


class _Session(Protocol):
    def get_inputs(self) -> list[_Input]: ...

    def run(self, outputs: None, feed: dict[str, NDArray[np.int64]]) -> list[_Numbers]: ...


class _Options(Protocol):
    intra_op_num_threads: int


class _Runtime(Protocol):
    def SessionOptions(self) -> _Options: ...  # noqa: N802 the library's name

    def InferenceSession(self, path: str, options: _Options) -> _Session: ...  # noqa: N802 the library's name


class _Encoded(Protocol):
    ids: list[int]
    attention_mask: list[int]
    type_ids: list[int]


class _Tokenizer(Protocol):
    truncation: object | None
    padding: object | None

    def enable_truncation(self, max_length: int) -> None: ...

    def enable_padding(self) -> None: ...

    def encode_batch(self, texts: list[str]) -> list[_Encoded]: ...


class _Loaded(NamedTuple):
    session: _Session
    tokenizer: _Tokenizer
    first_token: bool


class _Pooling(msgspec.Struct, frozen=True):
    """What is read of `1_Pooling/config.json`; without that the mean over the tokens is taken."""

    pooling_mode_cls_token: bool = False


class OnnxEmbedder:
    """The model of a folder, loaded when it is first asked. Raises `KnowledgeFault` where there is none."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._weights = next((folder / name for name in _WEIGHTS if (folder / name).is_file()), None)
        if self._weights is None or not (folder / "tokenizer.json").is_file():
            raise KnowledgeFault(
                f"HYBRID_EMBED_MODEL names {folder}, which does not hold model.onnx and tokenizer.json; put a model there"
            )
        with self._weights.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        self.model = f"onnx:{folder.name}@{digest[:_DIGEST_CHARS]}"
        self._lock = threading.Lock()
        self._loaded: _Loaded | None = None
        self._threads = Threads("onnx")

    async def embed(self, texts: Sequence[str], *, patient: bool) -> list[Vector]:
        del patient  # What fails here fails again.
        done = await self._threads.ended(self._embed, texts)
        error = done.exception()
        if error is not None:
            raise KnowledgeFault(f"the embedding model in {self._folder} cannot be used: {error}") from error
        return done.result()

    async def close(self) -> None:
        self._threads.close()

    def _embed(self, texts: Sequence[str]) -> list[Vector]:
        with self._lock:
            self._loaded = loaded = self._loaded or self._load()
            batches = [texts[at : at + _BATCH_MAX] for at in range(0, len(texts), _BATCH_MAX)]
            return [vector for batch in batches for vector in _vectors(loaded, batch)]

    def _load(self) -> _Loaded:
        runtime = cast(_Runtime, onnxruntime)
        options = runtime.SessionOptions()
        options.intra_op_num_threads = _THREADS
        session = runtime.InferenceSession(str(self._weights), options)
        tokenizer = cast(_Tokenizer, Tokenizer.from_file(str(self._folder / "tokenizer.json")))
        if tokenizer.truncation is None:
            tokenizer.enable_truncation(_TOKENS_MAX)
        if tokenizer.padding is None:
            tokenizer.enable_padding()
        pooling = self._folder / "1_Pooling" / "config.json"
        said = msgspec.json.decode(pooling.read_bytes(), type=_Pooling) if pooling.is_file() else _Pooling()
        return _Loaded(session, tokenizer, said.pooling_mode_cls_token)


def _vectors(loaded: _Loaded, texts: Sequence[str]) -> list[Vector]:
    encoded = loaded.tokenizer.encode_batch(list(texts))
    mask = np.array([one.attention_mask for one in encoded], np.int64)
    known = {
        "input_ids": np.array([one.ids for one in encoded], np.int64),
        "attention_mask": mask,
        "token_type_ids": np.array([one.type_ids for one in encoded], np.int64),
    }
    feed = {wanted.name: known[wanted.name] for wanted in loaded.session.get_inputs()}
    found = loaded.session.run(None, feed)[0]
    if found.ndim == 2:  # The model pools by itself.
        return found.tolist()
    if loaded.first_token:
        return found[:, 0].tolist()
    weights = mask[:, :, None].astype(np.float32)
    return ((found * weights).sum(axis=1) / np.maximum(weights.sum(axis=1), 1)).tolist()
