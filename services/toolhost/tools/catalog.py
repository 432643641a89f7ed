"""Which tools this host offers, and how one is carried out.

Invariant: `perform` always answers; what a tool cannot do is an `Outcome` with `ok=False` and the failure's code.
"""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

from libs.contracts.tools import ToolSpec
from services.toolhost.errors import ToolFailure
from services.toolhost.tools import (
    Arguments,
    Outcome,
    ToolContext,
    apply_patch,
    echo,
    edit_file,
    get_git_diff,
    list_files,
    read_file,
    run_command,
    run_program,
    run_tests,
    search_knowledge,
    search_text,
    write_file,
)
from services.toolhost.tools.files import Plan


@dataclass(frozen=True, kw_only=True, slots=True)
class Tool:
    """One tool. Those that change files have a `plan`, whose digests are journaled before the effect."""

    spec: ToolSpec
    run: Callable[[ToolContext, Arguments], Awaitable[Outcome]]
    plan: Callable[[ToolContext, Arguments], Awaitable[Plan]] | None = None


_ALL = (
    Tool(spec=list_files.SPEC, run=list_files.run),
    Tool(spec=read_file.SPEC, run=read_file.run),
    Tool(spec=write_file.SPEC, run=write_file.run, plan=write_file.plan),
    Tool(spec=edit_file.SPEC, run=edit_file.run, plan=edit_file.plan),
    Tool(spec=apply_patch.SPEC, run=apply_patch.run, plan=apply_patch.plan),
    Tool(spec=search_text.SPEC, run=search_text.run),
    Tool(spec=get_git_diff.SPEC, run=get_git_diff.run),
    Tool(spec=run_tests.SPEC, run=run_tests.run),
    Tool(spec=run_command.SPEC, run=run_command.run),
    Tool(spec=run_program.SPEC, run=run_program.run),
    Tool(spec=echo.SPEC, run=echo.run),
    Tool(spec=search_knowledge.SPEC, run=search_knowledge.run),
)
TOOLS: Mapping[str, Tool] = {tool.spec.name: tool for tool in _ALL}


async def perform(tool: Tool, context: ToolContext, arguments: Arguments) -> Outcome:
    """Runs the tool; its failure is an answer too."""
    try:
        return await tool.run(context, arguments)
    except ToolFailure as failure:
        return failed(failure)


def failed(failure: ToolFailure) -> Outcome:
    """A failure as the model reads it."""
    return Outcome(
        ok=False, output=f"{failure.code}: {failure.message}", metadata={"error_code": failure.code}
    )
