"""What counts as a claim to have written a file, sentence by sentence."""

import pytest

from services.verifier.claims import claims_in

CLAIMS: list[tuple[str, list[str]]] = [
    ("I created `hello.txt`.", ["hello.txt"]),
    ("I've created a new file called notes.md with the summary.", ["notes.md"]),
    ("Created src/app.py and src/util.py.", ["src/app.py", "src/util.py"]),
    ("I updated `a.py`, `b.py`, and `c.md`.", ["a.py", "b.py", "c.md"]),
    ("I fixed the off-by-one error in `calc.py`.", ["calc.py"]),
    ("I fixed the bug in `calc.py`.", ["calc.py"]),
    ("I have fixed the rounding problem in src/money.py:42.", ["src/money.py"]),
    ("Fixed the division in calc.py; all tests pass now.", ["calc.py"]),
    ("The report was saved to out/report.md.", ["out/report.md"]),
    ("I saved the report to out/report.md.", ["out/report.md"]),
    ('I wrote the result to "result.json".', ["result.json"]),
    ("We wrote it as data/table.csv", ["data/table.csv"]),
    ("`calc.py` was updated to handle zero.", ["calc.py"]),
    ("a.py and b.py have been modified.", ["a.py", "b.py"]),
    ("The file `x/y.txt` has been created.", ["x/y.txt"]),
    ("- `calc.py`: fixed the subtraction", ["calc.py"]),
    ("* calc.py — added a null check", ["calc.py"]),
    ("- `app.ts` (modified)", ["app.ts"]),
    ("Files changed:\n- `a.py`\n- `b/c.py` the parser\n\nThat is all about z.py.", ["a.py", "b/c.py"]),
    (
        "I made the following changes:\n1. `main.go`: handles errors\n2. `go.mod`: new dependency",
        ["main.go", "go.mod"],
    ),
    ("I read a.py and updated b.py.", ["b.py"]),
    ("After reading a.py, I created b.py.", ["b.py"]),
    ("I added error handling to `server.js`.", ["server.js"]),
    ("I added tests in tests/test_new.py for calc.py.", ["tests/test_new.py"]),
    ("I changed main.py to read config.json.", ["main.py"]),
    ("I removed the unused import from `calc.py`.", ["calc.py"]),
    ("I moved the helper from a.py to b.py.", []),
    ("I moved the helper to b.py.", ["b.py"]),
    ("I made the change in `deep/er/file.rs`.", ["deep/er/file.rs"]),
    ("Then I rewrote ./lib/x.rb.", ["lib/x.rb"]),
    ("✅ Created `done.txt`", ["done.txt"]),
    ("**Created** `bold.py`", ["bold.py"]),
    ("Done! I created `z.py`.", ["z.py"]),
    ("I successfully created the Makefile.", ["Makefile"]),
    ("Modified files: a.py, b.py", ["a.py", "b.py"]),
    ("| File | Change |\n|---|---|\n| `a.py` | fixed the loop |", ["a.py"]),
    ("I implemented the parser in parser.py and documented it in README.md.", ["parser.py"]),
    ("I created [`linked.py`](linked.py).", ["linked.py"]),
    ("I updated `__init__.py` and `pkg/__init__.py`.", ["__init__.py", "pkg/__init__.py"]),
]
NO_CLAIMS = [
    "The log was written to out.log by the previous run.",
    "If the report was saved to out.md, read it.",
    "I fixed the test failure in calc.py.",
    "The answer is 42.",
    "I did not change x.py.",
    "I didn't modify `x.py` or `y.py`.",
    "I have not created any file such as x.txt.",
    "I never updated calc.py.",
    "x.py was not changed.",
    "`x.py` is unchanged.",
    "I changed nothing in calc.py.",
    "I updated everything except calc.py.",
    "I looked at calc.py and tests/test_calc.py.",
    "I read the file config.json.",
    "The bug is in calc.py.",
    "You should create `setup.py`.",
    "You could have updated x.py.",
    "To fix it, edit calc.py and run the tests.",
    "I would have created x.py, but it exists.",
    "I will create notes.md next.",
    "I was unable to write out.txt.",
    "Should I have updated x.py?",
    "If x.py was created, delete it.",
    "out.txt is created when you run main.py.",
    "x.py was created by the user.",
    "You created x.py and updated y.py.",
    "calc.py was added in version 2.",
    "The generated file out.txt is ignored.",
    "I fixed the failing test in tests/test_calc.py.",
    "I fixed tests/test_calc.py.",
    "I fixed the error reported in build.log.",
    "I implemented the feature as described in SPEC.md.",
    "I implemented the function in SPEC.md.",
    "I created a summary of calc.py.",
    "I wrote tests for calc.py.",
    "I created it based on template.html.",
    "I added Node.js support.",
    "I created the page with Vue.js.",
    "I updated the docs, see https://example.com/docs/page.html.",
    "I created an issue at github.com/org/repo/blob/main/x.py?plain=1.",
    "```\nI created x.py\n```",
    "Run `python calc.py` to see that I updated the output.",
    "I updated `math.sqrt` usage and fixed `self.total`.",
    "I added a link to README.md.",
    "I added `utils.py` to the list of checked files.",
    "I ran pytest, and test_calc.py passes.",
    "The tests in tests/test_calc.py verify this.",
    "Please make sure that you updated .env before you start.",
    "I copied the idea from a.py.",
    "When config.yaml was changed, the server restarted.",
    "The docs for calc.py were updated last year by someone.",
    "I verified that x.py was created correctly.",
    "The user asked whether a.py has been updated.",
    "The commit that changed b.py broke it.",
    "Files that were not changed:\n- `a.py`\n- `b.py`",
    "I created a/b and c/d options, e.g. and/or.",
    "I updated *.py.",
    "I created /etc/passwd.txt.",
    "I created ../outside.txt.",
]


@pytest.mark.parametrize("answer,paths", CLAIMS)
def test_a_claim_is_found(answer: str, paths: list[str]) -> None:
    assert [claim.path for claim in claims_in(answer)] == paths


@pytest.mark.parametrize("answer", NO_CLAIMS)
def test_what_only_mentions_a_file_is_no_claim(answer: str) -> None:
    assert claims_in(answer) == []


def test_a_claim_carries_the_sentence_that_makes_it_and_each_path_once() -> None:
    claims = claims_in("All good. I created `a.py`. Then I updated `a.py` and b.py.")
    assert [(claim.path, claim.sentence) for claim in claims] == [
        ("a.py", "I created a.py."),
        ("b.py", "Then I updated a.py and b.py."),
    ]


def test_a_very_long_answer_is_read_in_bounded_time() -> None:
    assert claims_in("I created " + "a/" * 200_000) == []
    assert claims_in("I updated the " * 20_000) == []
    assert claims_in("I updated a.py and " * 20_000) == []
    assert len(claims_in("I updated a.py.\n" * 20_000)) == 1
