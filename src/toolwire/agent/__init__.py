"""The turn engine: consumes a turn from any backend, runs its tools while the stream goes on, and asks again."""

from toolwire.agent.agent import Agent
from toolwire.agent.call import Fatal, ToolCall, ToolError
from toolwire.agent.events import AgentEvent, TaskEnded, Tokens, as_line
from toolwire.agent.limits import Limits, Prices
from toolwire.agent.loop import Setup
from toolwire.agent.registry import Context, Registry, Result, tool
from toolwire.agent.session import Session, SessionError

__all__ = [
    "Agent",
    "AgentEvent",
    "Context",
    "Fatal",
    "Limits",
    "Prices",
    "Registry",
    "Result",
    "Session",
    "SessionError",
    "Setup",
    "TaskEnded",
    "Tokens",
    "ToolCall",
    "ToolError",
    "as_line",
    "tool",
]
