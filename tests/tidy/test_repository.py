"""Nothing that is committed holds a secret or knows the machine it was written on."""

from __future__ import annotations

import re
from collections.abc import Iterator

from tests.tidy.source import expect_none, repository_texts

# Written with character classes so that this file does not find itself.
FOREIGN = {
    "a path of one machine": re.compile(r"(?<![\w.$}<>*-])/(?:root|work|home|User[s])/[\w.]"),
    "the address of a package registry": re.compile(
        r"py[p]i\.org|pythonhoste[d]\.org|registry\.np[m]js|deb\.debia[n]\.org|proxy\.golan[g]|/simpl[e]/|--index-ur[l]|--find-link[s]"
    ),
    "a private key": re.compile(r"-----BEGIN [A-Z ]*PRIVATE KE[Y]"),
    "a token": re.compile(
        r"\bsk-[A-Za-z0-9]{20}|\bAKIA[0-9A-Z]{16}\b|\bgh[pousr]_[A-Za-z0-9]{36}|\bxox[abpr]-[0-9A-Za-z-]{10}|\bglpat-[\w-]{20}"
    ),
}
NEVER_COMMITTED = re.compile(r"(^|/)(uv\.lock|\.env|nats\.json|\.venv|\.uv|\.perdure|__pycache__)(/|$)")


def test_no_file_holds_a_secret_or_an_address_of_one_machine() -> None:
    expect_none(
        (found for path, text in repository_texts() for found in foreign(path, text)),
        "What is committed works on every machine and is safe to publish.",
    )


def test_nothing_generated_is_committed() -> None:
    expect_none(
        (path for path, _ in repository_texts() if NEVER_COMMITTED.search(path)),
        "Generated files stay out of the repository.",
    )


def test_the_lock_names_a_hash_for_every_package() -> None:
    lock = dict(repository_texts())["requirements.lock"]
    requirements = re.split(r"\n(?=[a-z])", re.sub(r"^#.*\n", "", lock, flags=re.MULTILINE))
    expect_none(
        (text.split("\n")[0] for text in requirements if "==" not in text or "--hash=sha256:" not in text),
        "Every locked package has a version and a hash; run `make lock`.",
    )


def test_what_is_foreign_is_found() -> None:
    samples = ["cd /ro" + "ot/x", "https://py" + "pi.org/a", "-----BEGIN PRIVATE KE" + "Y", "sk-" + "a1" * 12]
    assert [len(list(foreign("x", sample))) for sample in samples] == [1, 1, 1, 1]
    assert not list(foreign("x", "services/work/queue.py and --tmpfs /root and perdure/home/x"))


def foreign(path: str, text: str) -> Iterator[str]:
    for line, content in enumerate(text.split("\n"), 1):
        yield from (f"{path}:{line}: {what}" for what, pattern in FOREIGN.items() if pattern.search(content))
