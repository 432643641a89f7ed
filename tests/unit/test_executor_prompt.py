"""What the model is told beside the goal: only what is true of this run, and always the same for all of it."""

import re

import msgspec
import pytest

from libs.contracts import events as e
from libs.contracts.checks import (
    BrowserCheck,
    BrowserStep,
    Check,
    CommandCheck,
    DiffCheck,
    FileCheck,
    HttpCheck,
    JsonSchemaCheck,
    ReviewCheck,
    TestsCheck,
)
from libs.contracts.run import RunState
from libs.contracts.tasks import Limits, TaskSpec
from libs.contracts.values import ProjectInstructions
from services.executor.decision.activity import Attach, CallModel
from services.executor.decision.decide import Do, Env, foresee, settle
from services.executor.egress.context import Fits, Window
from services.executor.egress.prompt import system_prompt
from services.executor.tools.runtime import RUNTIME_TOOLS
from services.toolhost.tools.catalog import TOOLS
from tests.fakes.clock import START
from tests.fakes.histories import created

WINDOW = Limits().context_tokens
EVERY_TOOL = sorted({*(tool.spec.name for tool in TOOLS.values()), *RUNTIME_TOOLS})
AGENTS = ProjectInstructions(path="AGENTS.md", text="Tabs, not spaces.", sha256="0" * 64)


def prompt(
    task: TaskSpec | None = None,
    tools: list[str] | None = None,
    project: ProjectInstructions | None = None,
    window: int = WINDOW,
) -> str:
    offered = EVERY_TOOL if tools is None else tools
    return system_prompt(task or TaskSpec(goal="x"), offered, project, context_tokens=window)


@pytest.mark.parametrize("left_out", EVERY_TOOL)
def test_a_tool_that_is_not_offered_is_not_named(left_out: str) -> None:
    named = re.findall(r"`(\w+)`", prompt(tools=[name for name in EVERY_TOOL if name != left_out]))
    assert left_out not in named
    assert set(named) <= {*EVERY_TOOL, "run_command"}


def test_without_tools_the_prompt_offers_none() -> None:
    told = prompt(tools=[])
    assert "`" not in told
    assert "workspace. Paths" not in told


def test_an_unattended_run_is_told_that_nobody_answers_also_where_it_could_ask() -> None:
    assert "`ask_user`" in prompt()
    assert "`ask_user`" not in prompt(TaskSpec(goal="x", unattended=True))
    assert "Nobody can answer" in prompt(TaskSpec(goal="x", unattended=True))


def test_the_checks_of_the_task_are_told_each_in_a_line_and_not_without_end() -> None:
    acceptance: list[Check] = [
        TestsCheck(),
        CommandCheck(argv=["make", "lint"], expect_exit=1, expect_output="ok"),
        FileCheck(path="a.txt", contains="x{2}"),
        FileCheck(path="b.txt", exists=False),
        DiffCheck(must_touch=["src/*"], must_not_touch=["tests/*"]),
        BrowserCheck(url="http://127.0.0.1:80/", steps=[BrowserStep(click="a"), BrowserStep(expect="h1")]),
        HttpCheck(start=["./serve"], url="http://127.0.0.1:80/a", expect_body="hello"),
        JsonSchemaCheck(path="c.json", schema={"type": "array"}),
        ReviewCheck(rubric="Is it\nreadable?"),
        CommandCheck(argv=["echo", "long\n" * 1000]),
    ]
    told = prompt(TaskSpec(goal="x", acceptance=acceptance))
    for line in (
        "the project's tests",
        "the command make lint (exit code 1) (output matches ok)",
        "the file a.txt with text that matches x{2}",
        "no file b.txt",
        "the change touches src/* and leaves tests/* alone",
        "in a browser at http://127.0.0.1:80/: click a, expect h1",
        "GET http://127.0.0.1:80/a of the server ./serve answers 200 with a body that matches hello",
        'the file c.json holds JSON that fits the schema {"type":"array"}',
        "another model reviews the change: Is it readable?",
    ):
        assert f"  - {line}\n" in told
    assert max(map(len, told.splitlines())) < 600
    assert "and 80 more" in prompt(TaskSpec(goal="x", acceptance=[TestsCheck()] * 100))
    assert "clean checkout" not in prompt()


def test_the_projects_instructions_come_last_behind_the_rules_and_the_tasks_own() -> None:
    told = prompt(TaskSpec(goal="x", instructions=" Speak French. "), project=AGENTS)
    assert told.endswith(AGENTS.text)
    assert told.index("Rules") < told.index("Speak French.") < told.index("AGENTS.md")


def test_a_small_window_gets_less_of_the_projects_instructions_and_is_told_where_the_rest_is() -> None:
    long = msgspec.structs.replace(AGENTS, text="x" * 32_000)
    assert "There is more" not in prompt(project=long)
    small = prompt(project=long, window=4_000)
    assert len(small) < len(prompt()) + 3_000
    assert "There is more in AGENTS.md" in small
    assert "There is more" in prompt(project=msgspec.structs.replace(AGENTS, clipped=True))


def test_instructions_that_could_not_be_used_are_said_to_be_there() -> None:
    told = prompt(project=ProjectInstructions(path="AGENTS.md", problem="it is not UTF-8 text"))
    assert "AGENTS.md" in told
    assert "it is not UTF-8 text" in told


def test_the_prompt_is_short() -> None:
    assert len(prompt()) < 5_000


def attached(project: ProjectInstructions | None, *, changed: list[str] | None = None) -> e.WorkspaceAttached:
    return e.WorkspaceAttached(
        workspace_id="ws", host="h", replica="r", instructions=project, changed=changed or []
    )


def begun(task: TaskSpec | None = None) -> RunState:
    claimed = [e.RunStartRequested(by="t"), e.RunClaimed(owner="x", boot="b", epoch=1, attempt=1)]
    return foresee(created(Limits(), task or TaskSpec(goal="x", workspace="here")), claimed, START)


def test_what_the_project_said_at_the_first_request_stays_and_a_change_is_named_like_that_of_any_file() -> (
    None
):
    state = foresee(begun(), [attached(AGENTS)], START)
    assert (state.project, state.files) == (AGENTS, {"AGENTS.md": AGENTS.sha256})
    request = e.ModelRequested(iteration=1, model="m", message_count=2, estimated_tokens=9)
    later = foresee(state, [request, attached(None, changed=["AGENTS.md"])], START)
    assert later.project == AGENTS
    assert "AGENTS.md" in later.inbox[0].text
    other = msgspec.structs.replace(AGENTS, text="Spaces, not tabs.")
    assert foresee(later, [attached(other)], START).project == AGENTS


def fits(_: RunState, __: bool) -> tuple[int, Window]:
    return 2, Fits(tokens=9)


def env(*, attached: bool = False) -> Env:
    specs = {name: tool.spec for name, tool in TOOLS.items()} | RUNTIME_TOOLS
    return Env(now=START, model="m", specs=specs, attached=attached, busy=False, draining=False, window=fits)


def test_a_run_in_a_workspace_that_was_there_before_it_attaches_it_before_its_model_is_asked() -> None:
    settled = settle(begun(), env())
    assert (settled.events, settled.then) == ([], Do((Attach(),)))
    settled = settle(begun(), env(attached=True))
    assert [event.type for event in settled.events] == ["model.requested"]
    # Once the model was asked, nothing is attached before a call needs it.
    assert settle(settled.state, env()).then == Do((CallModel(1),))


def test_a_run_without_tools_for_it_or_with_a_workspace_of_its_own_asks_its_model_at_once() -> None:
    for task in (TaskSpec(goal="x", workspace="here", tools=["echo"]), TaskSpec(goal="x")):
        assert settle(begun(task), env()).then == Do((CallModel(1),))
