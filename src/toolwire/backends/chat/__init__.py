"""The Chat Completions API as a backend: vLLM, Ollama, llama.cpp, DeepSeek and others.

POST {base_url}/chat/completions  →  data: {"choices":[{"delta":{…}}]} … data: [DONE], or one plain completion
"""

from collections.abc import Mapping

import msgspec

from toolwire.backends.chat.decode import Decoder
from toolwire.backends.chat.encode import DIALECT, encode_request
from toolwire.backends.chat.profile import OPENAI, Profile
from toolwire.backends.chat.prompt import move_tools_to_prompt
from toolwire.backends.lowered import LoweredConversation
from toolwire.core.backend import Post
from toolwire.core.events import Event
from toolwire.core.request import Request
from toolwire.core.stage import Pipeline, Stage
from toolwire.notations.read import ReadTextCalls
from toolwire.notations.reasoning import ReadReasoning
from toolwire.notations.registry import CALLS, HERMES, REASONING
from toolwire.notations.values import Schemas

__all__ = ["OPENAI", "PATH", "Conversation", "Profile", "profile_from"]

PATH = "/chat/completions"
"""The path below the base URL."""


class Conversation(LoweredConversation):
    """One request to a Chat Completions server and its answer. `seed` makes the minted ids unique."""

    def __init__(self, request: Request, seed: str, profile: Profile = OPENAI) -> None:
        super().__init__(request, profile.limits)
        names = [tool.name for tool in self.lowered.tools]
        keeps, snapshots = request.dialect == DIALECT, profile.arguments == "snapshot"
        self.decoder = Decoder(seed, names, snapshots=snapshots, keeps_frames=keeps, choices=request.choices)
        if readers := make_text_readers(profile, self.lowered, seed):
            self._stages = Pipeline(*readers, self.restore)
        self._profile = profile

    def start(self) -> Post:
        profile, declared = self._profile, self.restore.declared
        if profile.tools == "prompt":
            self.lowered, notes = move_tools_to_prompt(self.lowered, profile.prompt_notation)
            self.decoder.opening += notes
            declared = self.lowered.tools
        body, notes = encode_request(self.lowered, profile, stream=self.lowered.stream, declared=declared)
        self.decoder.opening += notes
        return Post(PATH, body, {"accept": "text/event-stream" if self.lowered.stream else "application/json"})


def make_text_readers(profile: Profile, request: Request, seed: str) -> list[Stage[Event, Event]]:
    """The stages that read reasoning and calls in the model's text.

    Without tools, only call notations that divide the text into channels are read.
    """
    stages: list[Stage[Event, Event]] = [
        ReadReasoning(REASONING[name]) for name in profile.notations if name in REASONING
    ]
    openers = [opener for name in profile.notations for opener in CALLS.get(name, ())]
    if profile.tools == "prompt" and profile.prompt_notation is HERMES:
        openers += HERMES.reads
    if not request.wants_calls:
        openers = [opener for opener in openers if opener.ends]
    if openers:
        names = request.tool_names if request.wants_calls else ()
        mode = "live" if profile.tools == "prompt" else "whole"
        seed = f"{seed}n"  # its ids must differ from those of the reader behind all backends
        stages.append(ReadTextCalls(openers, seed, Schemas(request.tools), names, mode=mode))
    return stages


def profile_from(settings: Mapping[str, object]) -> Profile:
    """The default profile with the operator's settings."""
    return msgspec.convert(dict(settings), Profile)
