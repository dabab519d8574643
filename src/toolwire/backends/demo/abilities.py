"""What a tool does, as its name and the first sentence of its description tell.

get_weather                          get: weather
Read  "Reads a file from the disk."  read: file
exec_command                         run: command
Workflow "Execute a workflow …"      run: workflow
"""

import re
from functools import cached_property
from itertools import pairwise

import msgspec

from toolwire.backends.demo.vocabulary import CHANGING, LOOKING, VERBS, concept, parts_of, words
from toolwire.core.request import Tool

_SENTENCE = re.compile(r"[^.\n]{1,200}")
_WORD = re.compile(r"[^\W\d_][\w-]*")
_OPENINGS = words("the a an this tool function can may be is used use lets allows you to that which will")
"""Words before the verb of a description: `This tool can be used to edit files`."""
_STOPS = words("and or then that which from in into by for to with of on at you when if as")
"""Words that end the object of a description."""


class Sense(msgspec.Struct, frozen=True):
    """A verb and its objects."""

    verb: str
    objects: tuple[str, ...]
    strictly: bool = False
    """All objects must be meant; otherwise half of them are enough."""


class Ability:
    """A tool, and what it does."""

    def __init__(self, tool: Tool) -> None:
        self.tool = tool
        self.short_name = re.split(r"__|\.", tool.name)[-1] or tool.name
        """The name without the server that it comes from, as in `mcp__files__read`."""
        self._own = [word for word in map(concept, parts_of(self.short_name)) if word]
        sentence = _SENTENCE.match(tool.description.lstrip("`#* \n"))
        self._told = _WORD.findall(sentence[0]) if sentence is not None else []

    @cached_property
    def senses(self) -> list[Sense]:
        """By the name, and by the description."""
        verb, nouns = self._named
        described_verb, described = self._described
        usual = verb or described_verb or ("run" if "command" in nouns else "")
        # What is searched for is the object of a search, and what is read is a file.
        objects = nouns or (() if verb == "search" else described) or (("file",) if verb == "read" else ())
        by_name = Sense(usual, objects, strictly=not usual)
        return [by_name, Sense(described_verb, described, strictly=True)] if described_verb and described else [by_name]

    @cached_property
    def _named(self) -> tuple[str, tuple[str, ...]]:
        """The verb of the name, which comes first or last, and its other words."""
        for at in (0, len(self._own) - 1):
            if self._own[at:] and self._own[at] in VERBS:
                return self._own[at], tuple(self._own[:at] + self._own[at + 1 :])
        return "", tuple(self._own)

    @cached_property
    def _described(self) -> tuple[str, tuple[str, ...]]:
        """The verb that the description begins with, and the words from there to the next preposition."""
        start = next((at for at, word in enumerate(self._told) if word.lower() not in _OPENINGS), 0)
        verb = concept(self._told[start]) if self._told else ""
        objects: list[str] = []
        for word in self._told[start + (verb in VERBS) :][:6]:
            if word.lower() in _STOPS and objects:
                break
            objects.append(concept(word))
        return verb if verb in VERBS else "", tuple(dict.fromkeys(filter(None, objects)))

    @cached_property
    def is_harmless(self) -> bool:
        """Whether it only looks something up. A verb that is not known may do anything."""
        linked = [word for link, word in pairwise(self._told) if link.lower() in _STOPS]
        verbs = {*self._own, self._described[0], *map(concept, linked)} & VERBS
        if verbs & CHANGING or "command" in self._own:
            return False
        return bool(verbs & LOOKING) or len(self._own) < 2

    @cached_property
    def is_shell(self) -> bool:
        """Whether it runs commands."""
        return self.tool.kind == "function" and self.does("run", "command")

    def does(self, verb: str, thing: str) -> bool:
        """Whether that is what it does, and nothing more."""
        return any((sense.verb, sense.objects) == (verb, (thing,)) for sense in self.senses)
