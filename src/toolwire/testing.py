"""A scripted model for tests of agents: it returns the text, reasoning and calls of a script, without a network.

model = ScriptedModel(Calls("get_weather", city="Paris"), "It is warm.")
result = await Agent(model, tools=[get_weather]).run("What is the weather in Paris?")
assert model.requests[1].results == ("18 degrees in Paris",)

Only the model is scripted: its turns are read like those of a server.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias, cast

import msgspec

from toolwire.backends import responses
from toolwire.backends.demo.writer import DemoWriter
from toolwire.core.backend import Refuse, Script, Step, Wait
from toolwire.core.request import Message, Request, ResultEntry, TextPart
from toolwire.core.request import Tool as DeclaredTool

__all__ = ["Calls", "Fails", "ModelRequest", "Part", "Says", "ScriptedModel", "Thinks", "Turn", "Waits"]


class Says(msgspec.Struct, frozen=True):
    """The model says this text. A plain string is a shorthand for it."""

    text: str


class Thinks(msgspec.Struct, frozen=True):
    """The model returns this reasoning."""

    text: str


class Calls:
    """The model calls a tool with these arguments."""

    def __init__(self, tool: str, /, **arguments: Any) -> None:
        self.tool = tool
        self.text = msgspec.json.encode(arguments).decode()

    @classmethod
    def with_text(cls, tool: str, text: str) -> "Calls":
        """A call with this text as its arguments, which need not be valid JSON."""
        call = cls(tool)
        call.text = text
        return call


class Waits(msgspec.Struct, frozen=True):
    """The model sends nothing for this time."""

    seconds: float


class Fails(msgspec.Struct, frozen=True):
    """The server refuses the request; the other parts of the turn are ignored.

    An agent retries after a temporary failure, such as 503 and 429, but not after 400.
    """

    message: str = "The scripted model refuses this request."
    status: int = 400
    code: str = "scripted_failure"


Part: TypeAlias = str | Says | Thinks | Calls | Waits | Fails
Turn: TypeAlias = Part | Sequence[Part]
"""The answer of the model to one request."""


class ModelRequest(msgspec.Struct, frozen=True):
    """A request to the model."""

    instructions: str
    prompt: str
    """The last message of the user."""
    messages: tuple[tuple[str, str], ...]
    """The role and the text of every message."""
    results: tuple[str, ...]
    """The results of calls since the last turn of the model."""
    tools: tuple[str, ...]
    """The names of the declared tools."""


class ScriptedModel:
    """Answers each request with the next turn of its script, and records the requests.

    A turn may be a function of the request. `otherwise` answers all requests after the script; without it they fail.
    Raises `TypeError` for an invalid turn.
    """

    name = "scripted"

    def __init__(
        self,
        *turns: Turn | Callable[[ModelRequest], Turn],
        otherwise: Turn | Callable[[ModelRequest], Turn] | None = None,
    ) -> None:
        for index, turn in enumerate(turns):
            _check_turn(turn, f"turn {index + 1}")
        self._turns = list(turns)
        self._otherwise = None if otherwise is None else _check_turn(otherwise, "otherwise")
        self.requests: list[ModelRequest] = []
        """The requests, in order."""

    @property
    def unused(self) -> int:
        """The number of turns that have not been requested."""
        return len(self._turns)

    def conversation(self, request: Request, seed: str) -> "ScriptedConversation":
        """Begin the answer to a request; the engine calls this."""
        return ScriptedConversation(self, request, seed)

    def next_turn(self, request: ModelRequest) -> Sequence[Part]:
        """Record a request, and return its answer."""
        self.requests.append(request)
        turn = self._turns.pop(0) if self._turns else self._otherwise
        if turn is None:
            asked = len(self.requests)
            return [Fails(f"The script of this model has {asked - 1} turns, and it was asked {asked} times.")]
        made: Turn = _check_turn(turn(request), "what a function returned") if callable(turn) else turn
        return made if isinstance(made, Sequence) and not isinstance(made, str) else [made]


def _check_turn(turn: Any, what: str) -> Any:
    """Return a turn unchanged. Raises `TypeError` if it is invalid."""
    is_list = isinstance(turn, Sequence) and not isinstance(turn, str)
    parts: Sequence[Any] = cast("Sequence[Any]", turn) if is_list else [turn]
    for part in parts:
        if not isinstance(part, Part) and not callable(part):
            raise TypeError(f"{what}: a text, a part or a list of parts is needed, not {type(part).__name__}")
    return cast("Any", turn)


class ScriptedConversation(responses.Conversation):
    """One request to a scripted model."""

    def __init__(self, model: ScriptedModel, request: Request, seed: str) -> None:
        super().__init__(request, seed)
        self._model = model
        self._asked = request
        self._writer = DemoWriter(request, seed)

    def start(self) -> Script:
        return Script(self._steps(self._model.next_turn(_record(self._asked))))

    def _steps(self, parts: Sequence[Part]) -> Iterator[Step]:
        for part in parts:
            if isinstance(part, Fails):
                error = {"message": part.message, "code": part.code}
                yield Refuse(part.status, msgspec.json.encode({"error": error}))
                return
        yield self._writer.begin()
        for part in parts:
            yield from self._part(part)
        yield self._writer.complete()

    def _part(self, part: Part) -> Iterator[Step]:
        match part:
            case str(text) | Says(text):
                yield from self._writer.say(text)
            case Thinks(text):
                yield from self._writer.reason(text)
            case Calls():
                declared = [tool for tool in self._asked.tools if tool.name == part.tool]
                yield from self._writer.call(declared[0] if declared else DeclaredTool(part.tool), part.text)
            case Waits(seconds):
                yield Wait(seconds)
            case Fails():
                pass


def _record(request: Request) -> ModelRequest:
    messages = [(entry.role, _text(entry)) for entry in request.entries if isinstance(entry, Message)]
    prompts = [text for role, text in messages if role == "user"]
    results: list[str] = []
    for entry in reversed(request.entries):
        if not isinstance(entry, ResultEntry):
            break
        results.insert(0, _text(entry))
    return ModelRequest(
        request.instructions,
        prompts[-1] if prompts else "",
        tuple(messages),
        tuple(results),
        request.tool_names,
    )


def _text(entry: Message | ResultEntry) -> str:
    return "".join(part.text for part in entry.parts if isinstance(part, TextPart))
