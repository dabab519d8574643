"""Agents: ask a model, run the tools that it calls while its answer streams, and ask again with their results."""

from toolwire.agent.agent import Agent
from toolwire.agent.errors import (
    AgentError,
    AnswerCut,
    LimitReached,
    MaxTurnsExceeded,
    ModelFailed,
    ModelRateLimited,
    OutputInvalid,
    RepeatedCalls,
    ServerFailed,
)
from toolwire.agent.events import AgentEvent, TaskEnded, Tokens, as_line
from toolwire.agent.mcp import Server
from toolwire.agent.run import AgentRun, CompletedCall, RunResult
from toolwire.agent.session import Session, SessionError
from toolwire.agent.task import AgentConfig
from toolwire.core.errors import ToolwireError
from toolwire.turns.tools.call import FatalToolError, ToolCall, ToolError
from toolwire.turns.tools.loop import Limits, Prices
from toolwire.turns.tools.registry import Context, Registry, Result, Tool, Toolset, tool

__all__ = [
    "Agent",
    "AgentConfig",
    "AgentError",
    "AgentEvent",
    "AgentRun",
    "AnswerCut",
    "CompletedCall",
    "Context",
    "FatalToolError",
    "LimitReached",
    "Limits",
    "MaxTurnsExceeded",
    "ModelFailed",
    "ModelRateLimited",
    "OutputInvalid",
    "Prices",
    "Registry",
    "RepeatedCalls",
    "Result",
    "RunResult",
    "Server",
    "ServerFailed",
    "Session",
    "SessionError",
    "TaskEnded",
    "Tokens",
    "Tool",
    "ToolCall",
    "ToolError",
    "Toolset",
    "as_line",
    "tool",
]

for _value in [*globals().values()]:
    if isinstance(_value, type) and issubclass(_value, ToolwireError) and _value is not ToolwireError:
        _value.__module__ = __name__  # printed and pickled by its public name
