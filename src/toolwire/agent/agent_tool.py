"""An agent as a tool of another agent."""

from typing import TYPE_CHECKING, Any

import msgspec

from toolwire.agent.errors import AgentError
from toolwire.agent.events import TextDelta
from toolwire.core.events import CallKind
from toolwire.turns.tools.call import ToolCall, ToolError, read_arguments
from toolwire.turns.tools.registry import Context, Result, as_result
from toolwire.turns.tools.schema import schema_of

if TYPE_CHECKING:
    from toolwire.agent.agent import Agent


class Delegation(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The arguments of a call."""

    prompt: str
    """The work for the agent."""


_PARAMETERS = msgspec.Raw(msgspec.json.encode(schema_of(Delegation)))


class AgentTool:
    """Gives an agent a prompt. The agent's text is the progress of the call, its output the result."""

    kind: CallKind = "function"
    format: msgspec.Raw | None = None

    def __init__(self, agent: "Agent[Any, Any]", name: str, description: str, *, parallel: bool, writes: bool) -> None:
        self._agent = agent
        self.name = name
        self.description = description
        self.parallel = parallel
        self.writes = writes
        self.parameters: msgspec.Raw | None = _PARAMETERS

    async def run(self, call: ToolCall, context: Context) -> Result:
        """Run the agent. An `AgentError` becomes a tool error; the `FatalToolError` of a tool ends both runs."""
        prompt = read_arguments(call, Delegation).prompt
        try:
            async with self._agent.stream(prompt, deps=context.deps) as run:
                async for event in run:
                    if isinstance(event, TextDelta):
                        context.emit(event.text)
        except AgentError as error:
            context.spend(error.usage)
            raise ToolError(f"{self.name} failed: {error}") from error
        context.spend(run.result.usage)
        return as_result(run.result.output)
