"""The notations by their names in a profile, and those in which a model can be asked to write calls."""

from typing import Literal, TypeAlias

import msgspec

from toolwire.notations.control_tokens import HARMONY, KIMI, MISTRAL, write_kimi, write_mistral
from toolwire.notations.invoke import INVOKE, MARKERS, write_invoke
from toolwire.notations.reasoning import ReasoningMarkers
from toolwire.notations.table import Opener
from toolwire.notations.tool_call import TOOL_CALL, write_glm, write_tool_call
from toolwire.notations.write import Write

NotationName: TypeAlias = Literal["think", "think-begun", "mistral", "harmony", "invoke", "glm", "kimi"]

REASONING: dict[NotationName, ReasoningMarkers] = {
    "think": ReasoningMarkers("<think>", "</think>"),
    "think-begun": ReasoningMarkers("<think>", "</think>", begun=True),
    "mistral": ReasoningMarkers("[THINK]", "[/THINK]"),
}

CALLS: dict[NotationName, tuple[Opener, ...]] = {
    "mistral": (MISTRAL,),
    "harmony": HARMONY,
    "invoke": INVOKE,
    "glm": (TOOL_CALL,),
    "kimi": KIMI,
}


class PromptNotation(msgspec.Struct, frozen=True):
    """A notation for a prompt: how it is read, how it is written, and the markers to escape in other text."""

    reads: tuple[Opener, ...]
    write: Write
    markers: tuple[str, ...]


HERMES = PromptNotation((TOOL_CALL,), write_tool_call, (TOOL_CALL.open, TOOL_CALL.close))

PROMPT_NOTATIONS: dict[NotationName, PromptNotation] = {
    "mistral": PromptNotation((MISTRAL,), write_mistral, (MISTRAL.open,)),
    "invoke": PromptNotation(INVOKE, write_invoke, MARKERS),
    "glm": PromptNotation((TOOL_CALL,), write_glm, (TOOL_CALL.open, TOOL_CALL.close)),
    "kimi": PromptNotation(KIMI, write_kimi, ("<|tool_call",)),
}
