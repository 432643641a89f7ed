"""Every message of the bus that another service may send or read, with the place it is sent to (contract, section 5).

Invariant: `docs/bus/*.json` is made from this table (`python -m deploy.schemas` writes it) and from nothing else, so what
a stranger reads is what is decoded here. What is not in it (checkpoints, spending) is nobody's business but Perdure's.
"""

from typing import NamedTuple

import msgspec

from libs.contracts import checks, tools
from libs.contracts.leases import LeaseValue
from libs.contracts.live import ModelDelta
from libs.contracts.looks import Answer, Look
from libs.contracts.tasks import Ticket, Timer


class BusMessage(NamedTuple):
    """One body. `name` is its file in `docs/bus`; `kinds` are the structs it may be; `place` is a subject or a key, with
    `<p>` for the prefix; `who` says in a few words who sends it to whom."""

    name: str
    kinds: tuple[type[msgspec.Struct], ...]
    place: str
    who: str


MESSAGES = (
    BusMessage("lease", (LeaseValue,), "KV <p>-leases, key replica.<boot>", "every process, each second"),
    BusMessage(
        "host-catalog", (tools.HostCatalog,), "KV <p>-catalog, key <boot>", "tool hosts, every five seconds"
    ),
    BusMessage(
        "tool-call",
        (tools.ToolCall,),
        "<p>.call.host.<boot>, <p>.tool.host.<boot>, <p>.tool.any.<name>",
        "a run's owner to a tool host",
    ),
    BusMessage(
        "tool-result",
        (tools.ToolResult,),
        "the reply on <p>.call.host.<boot>; `result` of a journal entry",
        "a tool host to a run's owner",
    ),
    BusMessage(
        "journal-entry",
        (tools.JournalEntry,),
        "KV <p>-journal, key <run>.<call>.<attempt>",
        "tool hosts, before and after each effect",
    ),
    BusMessage(
        "control",
        (tools.CancelCalls, tools.AreYouAlive, tools.HowAreYou),
        "<p>.ctl.<boot>, a request",
        "owners, the scheduler and gateways to any process",
    ),
    BusMessage(
        "control-reply", (tools.ControlReply,), "the reply on <p>.ctl.<boot>", "the process that was asked"
    ),
    BusMessage(
        "vitals", (tools.Vitals,), "the reply on <p>.ctl.<boot> to HowAreYou", "the process that was asked"
    ),
    BusMessage(
        "live", (ModelDelta, tools.ToolNotice), "<p>.live.<tenant>.<run>", "owners and tool hosts, unstored"
    ),
    BusMessage(
        "verify-arguments",
        (checks.VerifyArguments,),
        "`arguments` of a tool-call on <p>.tool.any.verify",
        "a run's owner to a verifier",
    ),
    BusMessage("ticket", (Ticket,), "<p>.work.<priority>", "the scheduler to executors"),
    BusMessage("timer", (Timer,), "<p>.timer.<run>.<sequence>, <p>.fired.…", "the scheduler to itself"),
    BusMessage("look", (Look,), "<p>.call.look.<boot>, a request", "a gateway to a workspace's host"),
    BusMessage(
        "look-answer",
        Answer.__args__,
        "the reply on <p>.call.look.<boot>",
        "the workspace's host to a gateway",
    ),
)
