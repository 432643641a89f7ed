"""Sections B and C of the field's cases: arguments and names of calls; histories.

Invariant: as in `field_case.py`. Three kinds have files of their own: loops (58, 59) `test_circles_and_limits.py`,
summaries (65 to 68) `test_context.py`, crashes between a call and its result (61, 62) `test_silences_and_crashes.py`.
"""

from __future__ import annotations

import json

from tests.e2e.field_case import LAST, Case, called, sent, tries
from tests.e2e.stage import call as scripted
from tests.e2e.stage import calls, says
from tests.fakes.wire import DONE, chunk, fin, tc, usage

X = '{"text":"x"}'
RAN_X = ((True, "x"),)
TODOS = '{"todos":"[{\\"content\\":\\"Build TWO apps\nFollow\\",\\"status\\":\\"pending\\"}]"}'
LONG = "n" * 80
ROWS = json.dumps([{"content": f"row {number}"} for number in range(9_000)])
HUGE = "a word " * 300_000
OVERFLOWS = (
    (400, "context_length_exceeded"),
    (400, "the request exceeds the available context size (exceed_context_size_error)"),
    (413, "Request Entity Too Large"),
    (500, "context window exceeds limit"),
    (400, "input length and `max_tokens` exceed context limit: 1 + 2 > 3"),
    (400, "prompt is too long: 210000 tokens > 200000 maximum"),
    (422, "Please reduce the length of the messages."),
)
XML = (
    "<function=echo><parameter=text>x</parameter></function>",
    "<tool_call>" + '{"name":"echo","arguments":' + X + "}</tool_call>",
)
INVOKED = '<{0} name="echo"><{1} name="text">x</{1}></{0}>'.format("invoke", "parameter")


def ran(
    number: str, must: str, args: object, *results: tuple[bool, str], name: str = "echo", **more: object
) -> Case:
    """One call with these arguments, and the end."""
    case = Case(
        number, must, [called(tc(0, "a", name, args)), LAST], results=results, used=(30, 7), requests=2
    )
    return case._replace(**more)


def spoken(number: str, must: str, content: str, *, model: str | None = None) -> Case:
    """A turn that writes its call into its text."""
    turn = sent(chunk(content=content) + fin("stop") + usage(10, 5) + DONE)
    if model is not None:
        return Case(
            number, must, [turn, LAST], results=RAN_X, used=(30, 7), requests=2, task={"model": model}
        )
    return Case(number, must, [turn, LAST], sees=("written as text",), used=(30, 7), requests=2)


def refusing(message: str, status: int = 400) -> dict[str, object]:
    return {"status": status, "body": {"error": {"message": message}}}


def steps(count: int, *last: dict[str, object]) -> list[dict[str, object]]:
    """Echoes of their own, one a turn, then the end."""
    return [*(calls(scripted("echo", text=f"step {number}")) for number in range(count)), *last]


CALL_CASES = (
    ran("43a", "empty arguments of a tool without required ones are none", "", (True, ""), name="get_git_diff"),
    ran("43b", "blank arguments of a tool with required ones are an error", " \n", (False, "text")),
    ran("43c", "null arguments too", None, (False, "text")),
    ran("43d", "no value is made up for arguments of a wrong type", [1], (False, "must be a JSON object")),
    ran("44", "arguments that are an object already are taken", {"text": "x"}, *RAN_X),
    ran("46", "JSON in a text is opened, line breaks and all", TODOS, (True, "Build TWO apps"), name="write_todos"),
    ran("47a", "control characters in texts are taken", '{"text":"x\ty\nz"}', (True, "x\ty\nz")),
    ran("47b", "literal line breaks between tokens are space", '{\\n  "text": "x\\ny"\\n}', (True, "x\ny")),
    ran("49", "a text without its end is never closed for the model", '{"path":"a.py","content":"import os\\nos.rem',
        (False, "end in the middle"), name="write_file", never=("os.rem",)),
    ran("49b", "arguments of megabytes are an error of the tool", '{"path":"a.py","content":"' + "x y " * 500_000 + '"}',
        (False, "split the work"), name="write_file"),
    Case("49c", "an answer of megabytes is an answer", [sent(chunk(reasoning_content=HUGE), chunk(content=HUGE), fin("stop") + usage(10, 5) + DONE)],
        answer=HUGE, used=(10, 5), requests=1),
    ran("49d", "a name of megabytes is an error of the tool", X, (False, "there is no tool"), name="n" * 2_000_000),
    ran("50", "a value without quotes is an error of the tool", '{"text": find /w -type f | head -20}', (False, "no valid JSON")),
    Case("many a", "calls beyond the bound of a turn are refused one by one", [called(*(tc(n, f"c{n}", "echo", X) for n in range(70))), LAST],
        results=(*RAN_X * 64, *((False, "at most 64 calls"),) * 6), used=(30, 7), requests=2),
    Case("many b", "and what came behind those is told", [called(*(tc(n, f"c{n}", "echo", X) for n in range(140))), LAST],
        results=(*RAN_X * 64, *((False, "12 more"),) * 64), used=(30, 7), requests=2, sees=("12 more behind it",)),
    ran("many c", "arguments of many small pieces that no record holds are an error of the tool", f'{{"todos":{ROWS}}}', (False, "split the work"),
        name="write_todos"),
    ran("52a", "an unknown tool is an error of the tool", "{}", (False, "there is no tool"), name="does_not_exist"),
    ran("52b", "a call without a name too", X, (False, "there is no tool"), name=""),
    ran("52c", "a name that no endpoint takes back goes back as one that it takes", X, (False, "there is no tool"), name=LONG),
    ran("52d", "a name with its namespace is the tool", X, *RAN_X, name="functions.echo:0"),
    ran("53a", "a number for a text is its text", '{"text":5}', (True, "5")),
    ran("53b", "a list for a text is an error", '{"text":["x"]}', (False, "text")),
    ran("53c", "a list as a text is the list", '{"todos":"[]"}', (True, "empty"), name="write_todos"),
    ran("53d", "a number for a path is no crash", '{"path":{"a":1},"content":5}', (False, "path"), name="write_file"),
    ran("53e", "null for an optional argument is none", '{"question":"x?","options":null}', (False, "unattended"), name="ask_user",
        task={"unattended": True}),
    ran("55a", "a surrogate pair is one character", '{"text":"\\ud83c\\udf78"}', (True, "🍸")),
    ran("55b", "half a pair is replaced", '{"text":"\\ud83d"}', (True, "\N{REPLACEMENT CHARACTER}")),
    *(spoken(f"56{letter}", "a call written as text is no answer", text) for letter, text in zip("abc", (*XML, INVOKED), strict=True)),
    *(spoken(f"56{letter}", "a call written as text is carried out where that is wished", text, model="spoken")
      for letter, text in zip("def", (*XML, INVOKED), strict=True)),
    Case("56g", "calls written as text, again and again, are never an answer", [sent(chunk(content=XML[0]) + fin("stop") + DONE)] * 9,
        error="MODEL_ERROR", requests=4),
    Case("64", "a batch leaves the context as a whole", steps(0, *(calls(*(scripted("echo", text=f"{turn} {one} " + "x " * 300)
        for one in range(6))) for turn in range(4)), says("Done.")), results=tuple((True, f"{turn} {one} ") for turn in range(4) for one in range(6)),
        task={"limits": {"context_tokens": 8_000}}),
    *(Case(f"70{letter}", f"an overflow is compacted, once: {words}", steps(3, tries(refusing(words, status), says("Done."))),
        results=tuple((True, f"step {number}") for number in range(3)), requests=5, refused=int(status == 400))
      for letter, (status, words) in zip("abcdefg", OVERFLOWS, strict=True)),
    Case("70h", "words about a cache are no overflow", steps(2, refusing("the prompt is below the minimum token count to start caching")),
        error="MODEL_ERROR", results=tuple((True, f"step {number}") for number in range(2)), requests=3, refused=1),
    Case("71a", "an output limit as large as the context leaves room for the input", [says("Done.")], task={"model": "large"},
        sees=('"max_tokens":12',), never=('"max_tokens":128000',), requests=1),
    Case("71b", "the provider's own output limit is learned", [says("Done.")], task={"model": "larger"}, rules=("small_output",),
        sees=('"max_tokens":16384',), refused=1, requests=2),
    Case("71c", "the name of the limit is learned", [says("Done.")], task={"model": "newer"}, rules=("no_max_tokens",),
        sees=('"max_completion_tokens":4096',), refused=1, requests=2),
    Case("73a", "a 400 that teaches nothing is asked once", [refusing("invalid request")], error="MODEL_ERROR", refused=1, requests=1),
    Case("73b", "a 400 that stays the same is not asked for ever", [refusing("stream_options and reasoning_content are wrong")],
        error="MODEL_ERROR", refused=3, requests=3),
    Case("77", "outputs are cut between characters", [calls(scripted("echo", text="🎉" * 600)), says("Done.")],
        results=((True, "🎉"),), task={"limits": {"max_tool_output_chars": 101}}, requests=2),
    *(Case(f"habit {rule}", "an endpoint's habit is learned from its refusal", [called(chunk(reasoning_content="hm"), tc(0, "a", "echo", X)), LAST],
        results=RAN_X, rules=(rule,), refused=1) for rule in ("no_system", "reserved_names")),
    *(Case(f"habit {rule}", "an endpoint's habit is learned from its refusal", [called(tc(0, "a", "echo", X)), LAST],
        results=RAN_X, rules=(rule,), refused=1) for rule in ("no_null_content", "short_ids")),
)  # fmt: skip
