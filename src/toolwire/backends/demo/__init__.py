"""The built-in model: a small deterministic script that calls tools, to try the gateway and to test clients.

It writes the stream of a Responses server, so a demo turn is processed like any other. `demo` looks at the request:
with a tool result it answers from it, else it calls the tool that the prompt asks for, else it answers in words.
`demo-SITUATION` plays a situation that a client should handle.

    history     the user's own words, without what the client added; results; the working directory
    prompt      the words and values of a prompt, and what they mean
    choosing    which tool a prompt asks for
    arguments   the calls of that tool and their arguments       schema   simple values for JSON Schemas
    situations  the turns                                        writer   a turn as a stream
"""

from toolwire.adapt.arguments import Validate
from toolwire.backends import responses
from toolwire.backends.demo.situations import MODELS, SITUATIONS, TurnPlan
from toolwire.backends.demo.writer import DemoWriter
from toolwire.core.backend import Script
from toolwire.core.errors import BadRequest
from toolwire.core.request import Request

__all__ = ["MODELS", "SITUATIONS", "Conversation"]


class Conversation(responses.Conversation):
    """One request to the demo model, answered as a Responses server would.

    `validate` checks the arguments of its calls. Raises `BadRequest` for an unknown situation.
    """

    def __init__(self, request: Request, seed: str, validate: Validate) -> None:
        super().__init__(request, seed)
        situation = request.model.removeprefix("demo").removeprefix("-")
        if situation not in SITUATIONS:
            message = f"The demo model has no situation {situation!r}; there are {', '.join(MODELS)}."
            raise BadRequest(message, "model", "model_not_found", status=404)
        self._steps = SITUATIONS[situation](TurnPlan(request, validate), DemoWriter(request, seed))

    def start(self) -> Script:
        return Script(self._steps)
