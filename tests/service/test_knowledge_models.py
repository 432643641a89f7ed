"""Embedding models: one behind an endpoint that has its own mind, and one in a folder of this machine."""

from __future__ import annotations

import json
import math
from collections.abc import AsyncIterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from tokenizers import Tokenizer, models, pre_tokenizers

from services.toolhost.errors import KnowledgeFault
from services.toolhost.knowledge.endpoint import EndpointEmbedder, EndpointSettings
from services.toolhost.knowledge.onnx import OnnxEmbedder
from tests.fakes.search_servers import served

KEY = "sk-not-a-real-key-at-all"
WORDS = ["[PAD]", "cat", "dog", "stone"]


# --- An endpoint ---


class Endpoint(NamedTuple):
    """What it answers, one after the other, and what it was asked."""

    answers: list[Response]
    asked: list[tuple[str | None, list[str]]]
    embedder: EndpointEmbedder


@pytest.fixture
async def endpoint() -> AsyncIterator[Endpoint]:
    answers: list[Response] = []
    asked: list[tuple[str | None, list[str]]] = []

    async def answer(request: Request) -> Response:
        asked.append((request.headers.get("authorization"), (await request.json())["input"]))
        return answers.pop(0)

    async with served(Starlette(routes=[Route("/v1/embeddings", answer, methods=["POST"])])) as url:
        embedder = EndpointEmbedder(EndpointSettings("small", f"{url}/v1/", KEY))
        yield Endpoint(answers, asked, embedder)
        await embedder.close()


def vectors(*found: list[float]) -> Response:
    # In another order than asked, as the index allows it.
    data = [{"index": index, "embedding": vector} for index, vector in enumerate(found)]
    return JSONResponse({"object": "list", "data": data[::-1]})


async def test_an_endpoint_is_asked_with_the_key_and_its_passing_faults_are_waited_out(
    endpoint: Endpoint,
) -> None:
    endpoint.answers.extend([JSONResponse({"error": "busy"}, 503), vectors([1.0, 0.0], [0.0, 1.0])])
    assert await endpoint.embedder.embed(["a", "b"], patient=True) == [[1.0, 0.0], [0.0, 1.0]]
    assert endpoint.asked == [(f"Bearer {KEY}", ["a", "b"])] * 2
    endpoint.answers.append(JSONResponse({"error": "busy"}, 503))
    with pytest.raises(KnowledgeFault, match="503"):
        await endpoint.embedder.embed(["a"], patient=False)


async def test_how_many_texts_an_endpoint_takes_is_learned_once(endpoint: Endpoint) -> None:
    texts = [str(number) for number in range(64)]
    refusal = JSONResponse({"error": {"message": "batch size is invalid"}}, 400)
    batch = vectors(*([[1.0]] * 32))
    endpoint.answers.extend([refusal, batch, batch, batch, batch])
    assert len(await endpoint.embedder.embed(texts, patient=True)) == 64
    assert len(await endpoint.embedder.embed(texts, patient=True)) == 64
    assert [len(asked) for _, asked in endpoint.asked] == [64, 32, 32, 32, 32]


@pytest.mark.parametrize(
    "answer,told",
    [
        (
            JSONResponse({"error": {"message": f"Incorrect API key provided: {KEY}"}}, 401),
            "status 401: .*Incorrect",
        ),
        (JSONResponse({"object": "list"}), "no list of embeddings"),
        (Response(b"\xff"), "no list of embeddings"),
        (vectors([1.0]), "1 embeddings for 2 texts"),
        (vectors([1.0], [1.0, 2.0]), "differ in length"),
        (Response(json.dumps({"data": [{"index": 0, "embedding": ["x"]}]})), "no list of embeddings"),
        (Response(status_code=302, headers={"location": "http://127.0.0.1:9/"}), "status 302"),
    ],
)
async def test_what_an_endpoint_does_wrong_is_told_without_the_key(
    endpoint: Endpoint, answer: Response, told: str
) -> None:
    endpoint.answers.append(answer)
    with pytest.raises(KnowledgeFault, match=told) as failed:
        await endpoint.embedder.embed(["a", "b"], patient=False)
    assert KEY not in failed.value.message
    assert "HYBRID_EMBED_MODEL" in failed.value.message


# --- A folder ---


def put_model(folder: Path, scale: float = 1.0) -> None:
    """A model of four words: each has a place of its own, which it says for each token."""
    table = (np.eye(len(WORDS)) * scale).astype(np.float32)
    graph = helper.make_graph(
        [helper.make_node("Gather", ["table", "input_ids"], ["last_hidden_state"])],
        "tiny",
        [helper.make_tensor_value_info("input_ids", TensorProto.INT64, ["batch", "tokens"])],
        [
            helper.make_tensor_value_info(
                "last_hidden_state", TensorProto.FLOAT, ["batch", "tokens", len(WORDS)]
            )
        ],
        [numpy_helper.from_array(table, "table")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "model.onnx").write_bytes(model.SerializeToString())
    tokenizer = Tokenizer(models.WordLevel({word: at for at, word in enumerate(WORDS)}, unk_token="[PAD]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.save(str(folder / "tokenizer.json"))


async def test_a_model_of_this_machine_embeds_by_the_mean_of_its_tokens(tmp_path: Path) -> None:
    put_model(tmp_path / "tiny")
    embedder = OnnxEmbedder(tmp_path / "tiny")
    # Padding counts for nothing, however long the other texts of the batch are.
    cat, mixed = await embedder.embed(["cat", "cat dog stone dog"], patient=True)
    assert cat == [0.0, 1.0, 0.0, 0.0]
    assert all(map(math.isclose, mixed, [0.0, 0.25, 0.5, 0.25]))
    (tmp_path / "tiny/1_Pooling").mkdir()
    (tmp_path / "tiny/1_Pooling/config.json").write_text('{"pooling_mode_cls_token": true}')
    first = OnnxEmbedder(tmp_path / "tiny")
    assert await first.embed(["dog cat"], patient=True) == [[0.0, 0.0, 1.0, 0.0]]
    await embedder.close()
    await first.close()


async def test_the_name_of_a_model_changes_with_its_weights_and_a_broken_one_is_told(tmp_path: Path) -> None:
    with pytest.raises(KnowledgeFault, match=r"does not hold model\.onnx"):
        OnnxEmbedder(tmp_path / "tiny")
    put_model(tmp_path / "tiny")
    name = OnnxEmbedder(tmp_path / "tiny").model
    put_model(tmp_path / "tiny", scale=2.0)
    other = OnnxEmbedder(tmp_path / "tiny")
    assert name.startswith("onnx:tiny@")
    assert name != other.model
    (tmp_path / "tiny/tokenizer.json").write_text("{}")
    with pytest.raises(KnowledgeFault, match="cannot be used"):
        await other.embed(["cat"], patient=True)
    await other.close()
