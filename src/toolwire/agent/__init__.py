"""The turn engine: consumes a turn from any backend, runs its tools while the stream goes on, and asks again."""

from toolwire.agent.agent import Agent
from toolwire.agent.events import AgentEvent, TaskEnded, Tokens, as_line
from toolwire.agent.loop import AgentConfig
from toolwire.agent.session import Session, SessionError
from toolwire.turns.tools.call import FatalToolError, ToolCall, ToolError
from toolwire.turns.tools.loop import Limits, Prices
from toolwire.turns.tools.registry import Context, Registry, Result, tool

__all__ = [
    "Agent",
    "AgentConfig",
    "AgentEvent",
    "Context",
    "FatalToolError",
    "Limits",
    "Prices",
    "Registry",
    "Result",
    "Session",
    "SessionError",
    "TaskEnded",
    "Tokens",
    "ToolCall",
    "ToolError",
    "as_line",
    "tool",
]
