"""Masking: no secret stays, nothing else changes, and no length does."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from libs.policy.masking import masked, masked_stream
from tests.fakes.wire import DONE, chunk, fin, tc

KEY = b"key-of-this-deployment"
# In parts, so that this file holds nothing that looks like a secret itself.
PEM = "PRIVATE " + "KEY-----"
SHAPES = [
    "Authorization: Bearer abcdefghijklmnopqrstuvwxyz",
    "sk-proj-abcdefghijklmnop1234",
    "AKIA" + "IOSFODNN7EXAMPLE",
    "ghp_" + "0123456789012345678901234567890123456789",
    "github_pat_0123456789012345678901_x",
    "xoxb-" + "123456789012-abcdef",
    "AIzaSyA0123456789012345678901234567890ab",
    "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.abc_def-1",
    f"-----BEGIN RSA {PEM}\nMIIEpAIBAAKCAQEA\n-----END RSA {PEM}",
    "postgres://me:hunter22@host/db",
    'password = "correct-horse"',
    '{"api_key": "0123456789abcdef"}',
    '{\\"client_secret\\": \\"0123456789abcdef\\"}',
]


@pytest.mark.parametrize("text", SHAPES)
def test_what_looks_like_a_secret_is_masked_and_what_stands_around_it_is_not(text: str) -> None:
    shown = masked(f"before {text} after".encode()).decode()
    assert len(shown) == len(f"before {text} after")
    assert shown.startswith("before ")
    assert shown.endswith(" after")
    assert "****" in shown
    secret = max(text.replace("\n", " ").replace('\\"', " ").replace('"', " ").split(), key=len)
    assert secret not in shown


@pytest.mark.parametrize(
    "text",
    [
        '{"prompt_tokens":1200000,"completion_tokens":5}',
        '{"max_tokens":100000,"tool_choice":"auto"}',
        "the password is too short",
        "https://example.com:8080/a@b",
        "def token(secret): ...",
    ],
)
def test_ordinary_text_stays(text: str) -> None:
    assert masked(text.encode()).decode() == text


@given(st.binary(max_size=200), st.binary(max_size=200))
def test_a_known_secret_goes_wherever_it_stands_and_no_length_changes(before: bytes, behind: bytes) -> None:
    whole = before + KEY + behind
    for mask in (masked, masked_stream):
        found = mask(whole, [KEY])
        assert KEY not in found
        assert len(found) == len(whole)


def test_a_secret_that_comes_in_several_deltas_is_masked_in_all_of_them() -> None:
    split = ["my key-of", "-this-dep", "loyment, and sk-abcdefgh", "ijklmnop1234 too"]
    stream = b"".join(chunk(content=piece) for piece in split)
    stream += b"".join(tc(0, None, None, piece) for piece in split) + fin("stop") + DONE
    found = masked_stream(stream, [KEY])
    assert len(found) == len(stream)
    for piece in ("key-of", "-this-dep", "loyment", "abcdefgh", "ijklmnop1234"):
        assert piece.encode() not in found
    for line in found.split(b"\n\n")[:-2]:
        msgspec.json.decode(line.removeprefix(b"data: "))


def test_a_key_whose_end_stands_in_another_message_leaves_the_messages_whole() -> None:
    pieces = [f"-----BEGIN {PEM}\nMIIE", f"pAIBAAKCAQEA\n-----END {PEM}"]
    stream = b"".join(chunk(content=piece) for piece in pieces) + fin("stop") + DONE
    found = masked_stream(stream)
    assert b"MIIE" not in found
    assert b"pAIBAAKCAQEA" not in found
    for line in found.split(b"\n\n")[:-2]:
        msgspec.json.decode(line.removeprefix(b"data: "))
    request = msgspec.json.encode({"messages": [{"content": piece} for piece in pieces]})
    messages = msgspec.json.decode(masked(request), type=dict[str, list[dict[str, str]]])["messages"]
    assert [message["content"].strip("*") for message in messages] == [
        f"-----BEGIN {PEM}\n",
        f"-----END {PEM}",
    ]
    nested = msgspec.json.encode([msgspec.json.encode([f"-----BEGIN {PEM}\nMIIEabcd", "x"]).decode()])
    assert "MIIE" not in msgspec.json.decode(msgspec.json.decode(masked(nested))[0])[0]


def test_a_value_too_short_to_be_a_secret_masks_nothing() -> None:
    assert masked(b"a b c", [b"", b"b"]) == b"a b c"


@pytest.mark.parametrize("kept", range(4, len(KEY)))
def test_the_beginning_of_a_secret_at_a_cut_is_masked(kept: int) -> None:
    assert masked(b"refused: " + KEY[:kept], [KEY]) == b"refused: " + b"*" * kept
    assert masked(b"refused: " + KEY[:kept] + b" and more", [KEY]).startswith(b"refused: " + KEY[:kept])
