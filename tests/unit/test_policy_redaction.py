"""Redaction: no secret stays, no line goes, code stays code, a part is like the whole, and nothing takes long."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from libs.policy.redaction import MARK, Redaction, key_lines
from libs.policy.secret_forms import is_guessable, spans

KEY = "key-4-this-deployment"
REDACTION = Redaction(lambda: [KEY.encode(), b"any", b"not-needed"])
CHANCE = "a1B2c3D4e5F6g7H8i9J0"
# In parts, so that this file holds nothing that looks like a secret itself.
PEM = "PRIVATE " + "KEY-----"
BODY = ["MIIEvQIBADANBgkqhkiG9w0BAQEFAASCBKcwggSjAgEAAoIBAQC7VJTUt9Us8cKj"] * 3 + ["xyz8="]
WHOLE_KEY = "\n".join([f"-----BEGIN {PEM}", *BODY, f"-----END {PEM}"])
FORMS = {
    "openai": f"sk-proj-{CHANCE}",
    "anthropic": f"sk-ant-api03-{CHANCE}",
    "dashscope": f"sk-{CHANCE * 2}",
    "aws id": "AKIA" + "IOSFODNN7EXAMPLE",
    "aws secret": "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY",
    "github": "ghp_" + CHANCE * 2,
    "github fine": f"github_pat_{CHANCE}_x",
    "gitlab": f"glpat-{CHANCE}",
    "slack": "xoxb-" + f"123456789012-{CHANCE}",
    "google": "AIza" + "SyA0123456789012345678901234567890a",
    "stripe": f"sk_live_{CHANCE}",
    "webhook": f"whsec_{CHANCE}{CHANCE}",
    "hugging face": "hf_" + CHANCE * 2,
    "azure": "AccountKey=" + CHANCE * 3 + "==",
    "jwt": "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.abc_def-1",
    "seed": "SU" + "A2" * 28,
    "bearer": f"Authorization: Bearer {CHANCE}",
    "basic": "Authorization: Basic dXNlcjpwYXNzd29yZDE=",
    "address": "postgres://me:hunter22@host/db",
    "address with a token": f"https://{CHANCE}@host/x.git",
    "known": KEY,
}
SECRETS = {
    "aws secret": "aws_secret_access_key = " + FORMS["aws secret"],
    "json": f'{{"api_key": "{CHANCE}"}}',
    "escaped": f'{{\\"client_secret\\": \\"{CHANCE}\\"}}',
    "yaml": f"password: {CHANCE}",
    **{name: text for name, text in FORMS.items() if name != "aws secret"},
}


def heart(text: str) -> str:
    """What of a text is secret: the longest run without blanks and quotes, or what stands before an @."""
    if "://" in text:
        return text.partition("://")[2].partition("@")[0].rpartition(":")[2]
    return max(text.replace('\\"', " ").replace('"', " ").replace("AccountKey=", " ").split(), key=len)


@pytest.mark.parametrize("name", SECRETS)
@pytest.mark.parametrize("frame", ["{}", "before {} after", "line\n{}\nline", '"text\\n{}\\n"', "é {} 日本"])
def test_what_is_secret_goes_and_what_stands_around_it_stays(name: str, frame: str) -> None:
    text = frame.format(SECRETS[name])
    shown = REDACTION.text(text)
    assert heart(SECRETS[name]) not in shown
    assert MARK in shown
    before, _, after = frame.partition("{}")
    assert shown.startswith(before)
    assert shown.endswith(after)
    assert REDACTION.text(shown) == shown


@pytest.mark.parametrize(
    "text",
    [
        "def token(secret): ...",
        "api_key = settings.api_key_from_env_v2",
        'password = "correct-horse"',
        "password = get_password_of_user_2()",
        "Authorization: Bearer YOUR_API_KEY_GOES_HERE",
        'headers["Authorization"] = f"Bearer {token_of_user_1}"',
        "API_KEY=${API_KEY_OF_PRODUCTION_1}",
        "next_token: 0123456789abcdef0123456789abcdef",
        "cache-key: 0123456789abcdef0123456789abcdef",
        "sha256 = 3f786850e387550fdab836ed7e6dc881de23001b3f786850e387550fdab836ed",
        "task-runner-number-one-of-1234567890",
        "sk-learn",
        "sk-cube-grid-animation-of-css",
        "https://example.com:8080/a@b",
        "postgres://${USER}:${PASSWORD}@host/db",
        "docker pull ghcr.io/owner/image:1.2.3",
        f'MARKER = "-----BEGIN {PEM}"\npass\nelse\n',
        f"The line -----BEGIN {PEM} begins a key, and -----END {PEM} ends it.",
        "any key that is not-needed",
        '{"prompt_tokens":1200000,"completion_tokens":5}',
        "JWT: eyJhbGciOiJIUzI1NiJ9",
    ],
)
def test_ordinary_text_stays(text: str) -> None:
    assert REDACTION.text(text) == text


@pytest.mark.parametrize(
    "shape",
    ["{}", "        {}", "+{}", "     7\t{}", "keys/a.pem:7: {}", '    "{}\\n"', "  {}\r"],
)
def test_the_lines_of_a_private_key_go_one_by_one_however_they_are_shown(shape: str) -> None:
    lines = [shape.format(line) for line in WHOLE_KEY.split("\n")]
    for cut in (lines, lines[:-1], lines[1:]):
        shown = REDACTION.text("\n".join(["first", *cut, "last thing"])).split("\n")
        assert len(shown) == len(cut) + 2
        assert (shown[0], shown[-1]) == ("first", "last thing")
        assert not [line for line in shown for part in BODY if part in line]


def test_a_private_key_on_one_line_goes_and_the_line_stays() -> None:
    one = WHOLE_KEY.replace("\n", "\\n")
    assert REDACTION.text(f'{{"a": "{one}", "b": 1}}') == (
        f'{{"a": "-----BEGIN {PEM}{MARK}-----END {PEM}", "b": 1}}'
    )


def test_headers_of_an_encrypted_key_stay() -> None:
    text = WHOLE_KEY.replace("\n", "\nProc-Type: 4,ENCRYPTED\nDEK-Info: AES-128-CBC,AB\n\n", 1)
    shown = REDACTION.text(text)
    assert "Proc-Type: 4,ENCRYPTED" in shown
    assert BODY[0] not in shown


def test_the_lines_of_keys_in_a_file_are_known_by_number() -> None:
    data = f"a\n{WHOLE_KEY}\nb\n".encode()
    assert key_lines(data) == {3, 4, 5, 6}
    assert key_lines(b"a\nb\n") == frozenset()


@pytest.mark.parametrize("name", [*FORMS, "key"])
def test_a_part_shows_nothing_of_a_secret_that_reaches_into_it(name: str) -> None:
    secret = WHOLE_KEY if name == "key" else SECRETS[name]
    text = f"{'x ' * 50}{secret}{' y' * 50}"
    parts = {secret} if name != "key" else set(BODY[:1])
    for cut in range(90, 110 + len(secret)):
        for shown in (REDACTION.part(text, 0, cut), REDACTION.part(text, cut, len(text))):
            for part in parts:
                hidden = heart(part)
                assert hidden[-8:] not in shown
                assert hidden[:8] not in shown or hidden.startswith(
                    ("sk-", "github", "postgres", "AccountKey", "hooks")
                )
        joined = REDACTION.part(text, 0, cut) + REDACTION.part(text, cut, len(text))
        assert joined.count("\n") == text.count("\n")


def test_a_known_secret_is_seen_where_a_text_is_cut() -> None:
    assert REDACTION.text(f"see {KEY[:12]}… [cut]") == f"see {MARK}… [cut]"
    assert REDACTION.text(f"see {KEY[:12]}") == f"see {MARK}"
    assert REDACTION.text(f"see {KEY[:12]} and more") == f"see {KEY[:12]} and more"


@pytest.mark.parametrize("value", ["any", "not-needed", "EMPTY", "ollama", "", "password"])
def test_words_are_no_secrets(value: str) -> None:
    assert is_guessable(value.encode())


def test_texts_within_values_go_and_names_by_which_others_find_something_stay() -> None:
    value = {
        "output": f"a {KEY}",
        "argv": ["curl", f"https://u:{CHANCE}@h"],
        "path": f"sk-{CHANCE * 2}",
        "count": 3,
        "deep": [{"reason": None, "ok": True, "text": KEY}],
    }
    assert REDACTION.value(value) == {
        "output": f"a {MARK}",
        "argv": ["curl", f"https://u:{MARK}@h"],
        "path": f"sk-{CHANCE * 2}",
        "count": 3,
        "deep": [{"reason": None, "ok": True, "text": MARK}],
    }


pieces = st.lists(
    st.sampled_from(
        [*SECRETS.values(), WHOLE_KEY, *BODY, "plain", "é", "\n", " ", "\\n", '"', MARK, KEY[:10], "…"]
    ),
    max_size=12,
)


@given(pieces)
def test_redacting_twice_is_redacting_once_and_no_line_is_lost(parts: list[str]) -> None:
    text = " ".join(parts)
    shown = REDACTION.text(text)
    assert shown.count("\n") == text.count("\n")
    assert REDACTION.text(shown) == shown
    assert KEY not in shown


HOSTILE = [
    "-eyJ", "eyJaaaaaaaaaaaa.", "-sk-", "sk-a-", f"-----BEGIN {PEM}", f"-----END {PEM}\n", "bearer ", "password: ",
    "api_key=", "://a:", "://", "key-4-th", "A", " ", "SA", "A" * 64 + "\n", "token ", "Authorization: Basic ",
    f"-----BEGIN {PEM}\n\n", "A: b\n", "\\n",
]  # fmt: skip


@pytest.mark.parametrize("unit", HOSTILE)
def test_a_long_text_is_read_to_its_end_whatever_it_is_made_of(unit: str) -> None:
    # Whoever reads again what did not fit reads a hundred thousand times here, and is ended by the suite's patience.
    data = (unit * (400_000 // len(unit) + 1)).encode()
    found = spans(data, [KEY.encode()])
    assert found == sorted(found)
    assert all(0 <= start < end <= len(data) for start, end in found)


def test_the_code_of_this_project_is_no_secret() -> None:
    root = Path(__file__).resolve().parents[2]
    for path in sorted((root / "services").rglob("*.py")):
        text = path.read_text()
        assert REDACTION.text(text) == text, path
