"""The notations by the names they have in a profile, and those that a model can be taught."""

from typing import Literal, TypeAlias

import msgspec

from toolwire.notations.glm import write_glm
from toolwire.notations.harmony import HARMONY
from toolwire.notations.invoke import INVOKE, MARKERS, write_invoke
from toolwire.notations.kimi import KIMI, write_kimi
from toolwire.notations.mistral import MISTRAL, write_mistral
from toolwire.notations.table import Opener
from toolwire.notations.thoughts import Thought
from toolwire.notations.tool_call import TOOL_CALL, write_tool_call
from toolwire.notations.write import Write

NotationName: TypeAlias = Literal["think", "think-begun", "mistral", "harmony", "invoke", "glm", "kimi"]

THOUGHTS: dict[NotationName, Thought] = {
    "think": Thought("<think>", "</think>"),
    "think-begun": Thought("<think>", "</think>", begun=True),
    "mistral": Thought("[THINK]", "[/THINK]"),
}

CALLS: dict[NotationName, tuple[Opener, ...]] = {
    "mistral": (MISTRAL,),
    "harmony": HARMONY,
    "invoke": INVOKE,
    "glm": (TOOL_CALL,),
    "kimi": KIMI,
}


class Taught(msgspec.Struct, frozen=True):
    """A notation that a model can be shown: how it is read, how it is written, and what nobody else may write."""

    reads: tuple[Opener, ...]
    write: Write
    markers: tuple[str, ...]


HERMES = Taught((TOOL_CALL,), write_tool_call, (TOOL_CALL.open, TOOL_CALL.close))

TEACHABLE: dict[NotationName, Taught] = {
    "mistral": Taught((MISTRAL,), write_mistral, (MISTRAL.open,)),
    "invoke": Taught(INVOKE, write_invoke, MARKERS),
    "glm": Taught((TOOL_CALL,), write_glm, (TOOL_CALL.open, TOOL_CALL.close)),
    "kimi": Taught(KIMI, write_kimi, ("<|tool_call",)),
}
