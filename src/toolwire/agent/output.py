"""The typed output of a run: the model gives it as the arguments of a call of `final_result`.

That works on every server that supports tools, while some do not support `response_format`, or not together with tools.
Arguments that do not fit the type are a tool error that the model reads. An answer in text gets a reminder. The run
fails after more than `retries` failures.
"""

from typing import Any, Generic, TypeVar

import msgspec

from toolwire.agent.errors import OutputInvalid
from toolwire.core.events import CallKind
from toolwire.turns.tools.call import ToolCall, ToolError, read_arguments
from toolwire.turns.tools.registry import Context, Result, as_result
from toolwire.turns.tools.schema import decode_value, schema_of

T = TypeVar("T")
FINAL_RESULT = "final_result"
DESCRIPTION = "Give the final result of the work. Call it once, when everything else is done."
REMINDER = f"Give the final result by calling {FINAL_RESULT}; text alone is not read."
_WRAPPED = "result"


class OutputType(Generic[T]):
    """A type of output. A type that is not an object in JSON is wrapped in one argument, `result`."""

    def __init__(self, kind: type[T]) -> None:
        schema = schema_of(kind)
        self.kind = kind
        self.is_wrapped = schema.get("type") != "object" or "properties" not in schema
        self._arguments: Any = msgspec.defstruct("Arguments", [(_WRAPPED, kind)]) if self.is_wrapped else kind
        self.parameters = msgspec.Raw(msgspec.json.encode(schema_of(self._arguments) if self.is_wrapped else schema))

    def from_call(self, call: ToolCall) -> T:
        """The output in a call. Raises `ToolError`."""
        read: Any = read_arguments(call, self._arguments)
        return getattr(read, _WRAPPED) if self.is_wrapped else read

    def from_text(self, text: str) -> T:
        """The output in an answer that is JSON. Raises `msgspec.DecodeError`."""
        return decode_value(text, self.kind)


class OutputTool(Generic[T]):
    """The tool `final_result` of one run, which holds the output."""

    name = FINAL_RESULT
    description = DESCRIPTION
    kind: CallKind = "function"
    parallel = True
    writes = False
    format: msgspec.Raw | None = None

    def __init__(self, output_type: OutputType[T], retries: int) -> None:
        self._type = output_type
        self._retries = retries
        self._failures = 0
        self._reason = ""
        self.outputs: list[T] = []
        """The outputs that the model gave; the first one counts."""
        self.parameters: msgspec.Raw | None = output_type.parameters

    async def run(self, call: ToolCall, context: Context) -> Result:
        """Take the output. Raises `ToolError` if it does not fit."""
        try:
            self.outputs.append(self._type.from_call(call))
        except ToolError as error:
            self._fail(str(error))
            raise
        return as_result("The result was received.")

    def take_text(self, text: str) -> str:
        """Take an answer without a call as the output; returns a reminder for the model if it does not fit."""
        try:
            self.outputs.append(self._type.from_text(text))
        except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
            self._fail(f"the model did not call {FINAL_RESULT}")
            return REMINDER
        return ""

    def check(self) -> None:
        """Raise `OutputInvalid` if the model has used up its attempts."""
        if not self.outputs and self._failures > self._retries:
            raise OutputInvalid(f"no valid output after {self._failures} attempts: {self._reason}")

    def _fail(self, reason: str) -> None:
        self._failures += 1
        self._reason = reason
