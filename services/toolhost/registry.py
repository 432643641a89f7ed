"""The tools of this host with what a call is held against: the schema and the policy.

Invariant: a call that passes here has arguments of the tool's schema and is allowed by the policy; what is wrong with
one that does not is said by field, for the model to mend.
"""

from collections.abc import Mapping

from libs.contracts.tools import ToolCall, ToolSpec
from libs.policy.decision import Decision, Policy, decide
from libs.policy.schemas import Schemas
from services.toolhost.tools.catalog import Tool


class Registry:
    """Looks tools up and checks calls."""

    def __init__(self, tools: Mapping[str, Tool], policy: Policy) -> None:
        self._tools, self._policy = tools, policy
        self._schemas = Schemas({name: tool.spec for name, tool in tools.items()})

    @property
    def specs(self) -> list[ToolSpec]:
        return [tool.spec for tool in self._tools.values()]

    def find(self, name: str) -> Tool | None:
        return self._tools.get(name)

    def problem(self, call: ToolCall) -> str | None:
        """What is wrong with the arguments, by field; `None` when nothing is."""
        return self._schemas.problem(call.name, call.arguments)

    def decision(self, call: ToolCall) -> Decision:
        return decide(self._tools[call.name].spec, call.arguments, tenant=call.tenant, policy=self._policy)
