"""The tools of this host with what a call is held against: the schema and the policy.

Invariant: a call that passes here has arguments of the tool's schema and is allowed by the policy; what is wrong with
one that does not is said by field, for the model to mend.
"""

from collections.abc import Callable, Mapping

from libs.contracts.tools import ToolCall, ToolSpec
from libs.policy.decision import Decision, decide, hides
from libs.policy.rules import Policy
from libs.policy.schemas import Schemas
from services.toolhost.tools.catalog import Tool


class Registry:
    """Looks tools up and checks calls. `tools` are the host's own, which stay."""

    def __init__(self, tools: Mapping[str, Tool], policy: Policy) -> None:
        self._own, self._policy = tools, policy
        self.renew({})

    @property
    def specs(self) -> list[ToolSpec]:
        return [tool.spec for tool in self._tools.values()]

    def renew(self, others: Mapping[str, Tool]) -> None:
        """From now on there are these tools of others, and no former ones."""
        self._tools = {**others, **self._own}
        self._schemas = Schemas({name: tool.spec for name, tool in self._tools.items()})

    def find(self, call: ToolCall) -> Tool | None:
        """The tool that the call names, if it is its tenant's."""
        tool = self._tools.get(call.name)
        return tool if tool is not None and tool.spec.is_for(call.tenant) else None

    def problem(self, call: ToolCall) -> str | None:
        """What is wrong with the arguments, by field; `None` when nothing is."""
        return self._schemas.problem(call.name, call.arguments)

    def hides(self, call: ToolCall, *, approved: bool) -> Callable[[str], bool] | None:
        """Which files of the workspace the call has to pass over."""
        spec = self._tools[call.name].spec
        return hides(spec, tenant=call.tenant, policy=self._policy, approved=approved)

    def decision(self, call: ToolCall) -> Decision:
        return decide(self._tools[call.name].spec, call.arguments, tenant=call.tenant, policy=self._policy)
