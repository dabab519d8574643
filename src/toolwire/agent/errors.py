"""The errors of an agent's run.

ToolwireError
├── ToolError             raised by a tool: the model reads it, and the run continues
├── FatalToolError        raised by a tool: it ends the run, and `run` raises it unchanged
├── SessionError          a session cannot be read, written or used
└── AgentError            the run ended without a result; it has the `session`, the last `text` and the `usage`
    ├── ModelFailed       the model's server refused or failed; also a BackendFault
    │   └── ModelRateLimited    also a RateLimited
    ├── LimitReached      a limit was reached: `limit` is tokens, seconds or cost
    │   └── MaxTurnsExceeded
    ├── AnswerCut         the answer was cut off: `reason` is length or filter
    ├── RepeatedCalls     the model kept repeating a call that failed each time
    ├── OutputInvalid     the model gave no output of the required type
    └── ServerFailed      an MCP server could not be started, or the package mcp is not installed
"""

from typing import TYPE_CHECKING

from toolwire.core.errors import BackendFault, Failure, RateLimited, ToolwireError, fault_of
from toolwire.core.events import Usage

if TYPE_CHECKING:
    from toolwire.agent.session import Session


class AgentError(ToolwireError):
    """A run ended without a result. Its work so far is in `session`, which another run can continue."""

    session: "Session | None" = None
    """The session of the run; None if the run never began."""
    text: str = ""
    """The model's last text."""
    usage: Usage = Usage()
    """The tokens of the run."""


class ModelFailed(AgentError, BackendFault):
    """The model's server refused the request or failed, even after retries."""


class ModelRateLimited(ModelFailed, RateLimited):
    """The server's rate limit or quota was still reached after the retries."""


def model_failed(failure: Failure) -> ModelFailed:
    """The error of a run whose model failed."""
    return (ModelRateLimited if isinstance(fault_of(failure), RateLimited) else ModelFailed)(failure)


class LimitReached(AgentError):
    """A limit was reached before the work was done."""

    failure_code = "limit_reached"

    def __init__(self, limit: str) -> None:
        super().__init__(f"the limit {limit} was reached before the work was done")
        self.limit = limit
        """Its name in `Limits`."""


class MaxTurnsExceeded(LimitReached):
    """The maximum number of turns was reached before the work was done."""

    failure_code = "max_turns_exceeded"

    def __init__(self, turns: int) -> None:
        super().__init__("max_turns")
        self.args = (f"the work was not done after {turns} turns of the model",)


class AnswerCut(AgentError):
    """The model's answer was cut off, because of its length or a filter."""

    failure_code = "answer_cut"
    failure_status = 502

    def __init__(self, reason: str) -> None:
        super().__init__(f"the answer was cut off: {reason}")
        self.reason = reason


class RepeatedCalls(AgentError):
    """The model kept repeating a call that failed each time."""

    failure_code = "repeated_calls"
    failure_status = 502


class OutputInvalid(AgentError):
    """The model gave no output of the required type."""

    failure_code = "output_invalid"
    failure_status = 502


class ServerFailed(AgentError):
    """An MCP server could not be started, or the package `mcp` is not installed."""

    failure_code = "mcp_server_failed"
    failure_status = 502
