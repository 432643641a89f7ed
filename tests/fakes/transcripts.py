"""Transcripts of runs, written down or generated, and what our history makes of them for a strict server.

Invariant: call ids are unique in a run and results answer a call of the last turn, as in every log.
"""

import msgspec
from hypothesis import strategies as st

from deploy.dev.model_rules import SentRequest
from libs.contracts.run import RunState
from libs.contracts.tasks import Limits, TaskSpec
from libs.contracts.transcript import AssistantItem, Item, ToolItem, UserItem
from libs.contracts.values import ModelToolCall
from services.executor.egress.body import body
from services.executor.egress.history import History, messages
from services.executor.egress.profile import Profile
from services.executor.egress.request import ModelRequest
from tests.fakes.histories import created

SYSTEM = "You are an agent."
PLAIN = Profile()
TOOLS = b'[{"type":"function","function":{"name":"f","parameters":{"type":"object"}}}]'


def run(*items: Item, limits: Limits | None = None, **changes: object) -> RunState:
    state = created(limits or Limits(), TaskSpec(goal="Mend it."))
    return msgspec.structs.replace(state, transcript=items, **changes)


def said(iteration: int, content: str = "", calls: int = 0, *, reasoning: str = "") -> AssistantItem:
    made = [
        ModelToolCall(call_id=f"call_{iteration}_{index}", name="echo", arguments={"n": index})
        for index in range(calls)
    ]
    return AssistantItem(
        iteration=iteration, content=content, calls=made, finish_reason="stop", reasoning=reasoning
    )


def result(iteration: int, index: int = 0, output: str = "out", *, ok: bool = True) -> ToolItem:
    return ToolItem(call_id=f"call_{iteration}_{index}", name="echo", ok=ok, output=output)


def user(text: str) -> UserItem:
    return UserItem(text=text, origin="steering")


def sent(state: RunState, profile: Profile = PLAIN) -> SentRequest:
    def render(dialect: Profile) -> list[bytes]:
        return History(SYSTEM).outbound(state, dialect).fragments

    request = ModelRequest(iteration=1, render=render, estimated_tokens=7, tools=TOOLS)
    return msgspec.json.decode(body("m", request, profile), type=SentRequest)


def shape(state: RunState) -> list[tuple[str, str]]:
    return [(message.role, message.text) for message in sent(state).messages]


def expected_bytes(state: RunState, profile: Profile = PLAIN) -> bytes:
    return b",".join(msgspec.json.encode(message) for message in messages(state, SYSTEM, profile))


TEXT = st.text(max_size=6) | st.sampled_from(["", " ", "hello", "\ud83d"])


def _made(index: int, name: str, arguments: dict[str, object] | None) -> ModelToolCall:
    problem = "bad" if arguments is None else None
    return ModelToolCall(call_id=f"call_0_{index}", name=name, arguments=arguments, problem=problem)


_CALL = st.builds(
    _made,
    st.integers(0, 3),
    st.sampled_from(["echo", "", "ü x", "n" * 80]),
    st.none() | st.dictionaries(TEXT, TEXT, max_size=2),
)
_ITEM = st.one_of(
    st.builds(UserItem, text=TEXT, origin=st.sampled_from(["steering", "runtime", "verification"])),
    st.builds(
        AssistantItem,
        iteration=st.just(0),
        content=TEXT,
        calls=st.lists(_CALL, max_size=3, unique_by=lambda call: call.call_id),
        finish_reason=st.just("stop"),
        reasoning=TEXT,
    ),
    st.builds(ToolItem, call_id=st.just("call_0_0"), name=st.just("echo"), ok=st.booleans(), output=TEXT),
)


def _numbered(items: list[Item]) -> tuple[Item, ...]:
    """The same items with call ids as a log has them: unique in the run; results answer one of the last turns."""
    numbered: list[Item] = []
    turn = 0
    for item in items:
        match item:
            case AssistantItem():
                turn += 1
                calls = [
                    msgspec.structs.replace(call, call_id=call.call_id.replace("_0_", f"_{turn}_"))
                    for call in item.calls
                ]
                numbered.append(msgspec.structs.replace(item, iteration=turn, calls=calls))
            case ToolItem():
                index = len(item.output) % 3
                numbered.append(msgspec.structs.replace(item, call_id=f"call_{turn}_{index}"))
            case UserItem():
                numbered.append(item)
    return tuple(numbered)


TRANSCRIPT = st.lists(_ITEM, max_size=14).map(_numbered)
