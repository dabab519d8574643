"""What a prompt suggests for the properties of one call."""

from collections.abc import Sequence
from itertools import pairwise
from posixpath import join, normpath
from typing import Any, TypeAlias

from toolwire.adapt.schemas_walk import Schema
from toolwire.backends.demo.abilities import Ability
from toolwire.backends.demo.choosing import Prompt
from toolwire.backends.demo.forms import kind_of
from toolwire.backends.demo.schema.fill import Place
from toolwire.backends.demo.schema.texts import has_format
from toolwire.backends.demo.vocabulary import QUESTIONS, RETRIEVING, parts_of
from toolwire.backends.demo.words import Token

Given: TypeAlias = dict[str, list[str]]
"""The values that the prompt has for a call, by property."""

_ASIDE = frozenset(("call", "use", "tool", "function", "please"))
_LONGEST_REMARK = 80
_MOST_DIGITS = 15
_SHORTEST_CHOICE = 3
"""Letters of an enum's value that can be mentioned without being meant otherwise."""


class Hints:
    """The suggestions for one call."""

    def __init__(self, ability: Ability, prompt: Prompt, directory: str, given: Given) -> None:
        self._ability = ability
        self._prompt = prompt
        self._directory = directory
        self._given = given
        self._numbers: dict[str, str] = {}

    def texts(self, place: Place, schema: Schema) -> Sequence[str]:
        """What the prompt clearly has for this property."""
        formats: list[str] = schema.get("format", [])
        if formats:
            words = (word.strip(".,;:!?()\"'`<>") for word in self._prompt.text.split())
            return [word for word in words if word and has_format(word, formats[0])][:3]
        pair = self._prompt.pairs.get(place.name.lower())
        given = [pair] if pair is not None else self._given.get(place.name, []) if place.depth < 3 else []
        return [self._as_path(text, place) for text in given]

    def fallback(self, place: Place) -> str:
        """A text for a property that the prompt says nothing about."""
        match kind_of(place.name, place.description, self._ability):
            case "remark":
                return " ".join(self._prompt.whole.split())[:_LONGEST_REMARK] or "demo"
            case "message":
                return self._prompt.text.strip() or "demo"
            case "command":
                return "ls"
            case "glob":
                return "*"
            case "path" if self._ability.does("list", "directory") or "directory" in place.name.lower():
                return self._as_path(".", place)
            case _:
                return subject_of(self._ability, self._prompt)

    def _as_path(self, text: str, place: Place) -> str:
        """A path, made absolute if the property wants that and the client has told the working directory."""
        is_path = kind_of(place.name, place.description, self._ability) == "path"
        if not is_path or "absolute" not in place.description.lower() or not self._directory:
            return text
        return normpath(join(self._directory, text)) if not text.startswith("~") else text

    def numbers(self, place: Place) -> Sequence[Any]:
        """The number beside the property's name, or the first that no other property has."""
        said = self._prompt.pairs.get(place.name.lower()) or self._beside(place.name)
        numbers = self._prompt.values("number")
        free = [number for number in numbers if number not in self._numbers.values()]
        chosen = said or self._numbers.get(place.name) or (free or numbers or [""])[0]
        if chosen not in numbers:
            return []
        self._numbers.setdefault(place.name, chosen)
        digits = chosen[:_MOST_DIGITS]
        return [float(digits) if "." in digits else int(digits)]

    def _beside(self, name: str) -> str:
        """The number before or after a word of the property's name: `limit 5`, `5 days`."""
        words = {*parts_of(name)}
        tokens = self._prompt.tokens
        for one, other in pairwise(tokens):
            for number, word in ((one, other), (other, one)):
                if number.kind == "number" and word.kind == "word" and word.text.lower() in words:
                    return number.text
        return ""

    def items(self, place: Place) -> Sequence[Any]:
        """The items of an array: several values, or a command for a shell."""
        given = self._given.get(place.name, []) if place.depth == 1 else []
        if kind_of(place.name, place.description, self._ability) == "command":
            return ["bash", "-lc", (given or ["ls"])[0]]
        return [self._as_path(text, place) for text in given]

    def mentions(self, value: str) -> bool:
        """Whether the prompt has a value of an enum, or the name of a switch."""
        return len(value) >= _SHORTEST_CHOICE and self._prompt.mentions(value)

    def gives(self, place: Place, schema: Schema) -> bool:
        """Whether the prompt clearly gives the value of an optional property."""
        if place.depth != 1:
            return False
        if place.name.lower() in self._prompt.pairs or self._given.get(place.name):
            return True
        if any(isinstance(value, str) and self.mentions(value) for value in schema.get("enum", ())):
            return True
        return bool({"integer", "number"} & {*schema.get("type", ())}) and bool(self._beside(place.name))


def subject_of(ability: Ability, prompt: Prompt) -> str:
    """What the prompt is about: its text without the words that led to the tool; all of it if there are none."""
    own = {ability.tool.name.lower(), ability.short_name.lower()}
    meanings = {thing for sense in ability.senses for thing in (sense.verb, *sense.objects)}
    if not (prompt.concepts & meanings or any(token.text.lower() in own for token in prompt.tokens)):
        return prompt.whole or "demo"
    kept = [token for token in prompt.tokens if not _leads(token, meanings, own)]
    if not kept:
        return prompt.whole or "demo"
    return prompt.text[kept[0].start : kept[-1].end]


def _leads(token: Token, meanings: set[str], own: set[str]) -> bool:
    """Whether a word leads to the tool, or means nothing by itself."""
    word = token.text.lower()
    if token.kind != "word" or word in own:
        return word in own
    return not token.concept or token.concept in meanings | RETRIEVING or word in _ASIDE | QUESTIONS
