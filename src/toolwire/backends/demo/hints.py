"""Which values of a prompt go to which property of a tool, and what else the prompt suggests for them."""

from typing import Literal, TypeAlias

import msgspec

from toolwire.adapt.schemas_walk import Schema, listed, named
from toolwire.backends.demo.choosing import Ability
from toolwire.backends.demo.prompt import QUESTIONS, RETRIEVING, Token, UserPrompt, ValueKind, concept, split_name
from toolwire.backends.demo.schema import resolve, types_of
from toolwire.core.regex import Budget

PropertyKind: TypeAlias = Literal["path", "command", "url", "glob", "remark", "message", "text", "other"]
"""What a property holds. A remark tells people what a call is for, a message is a longer text."""

_KIND_NAMES: dict[PropertyKind, str] = {
    "path": "path file filename filepath directory",
    "command": "command",
    "url": "page uri",
    "remark": "describe description explanation justification reason title summary",
    "message": "prompt message task instruction question objective content body",
}
_KINDS: dict[str, PropertyKind] = {name: kind for kind, names in _KIND_NAMES.items() for name in names.split()}
_VALUES_FOR: dict[PropertyKind, tuple[ValueKind, ...]] = {
    "path": ("path", "code", "quoted"),
    "glob": ("code", "quoted", "path"),
    "url": ("url", "code", "quoted"),
    "message": ("quoted", "code"),
    "text": ("code", "quoted", "path", "url", "name", "number"),
}
_CHOICE_ORDER: tuple[PropertyKind, ...] = ("command", "path", "url", "glob", "remark", "message", "text")
"""Properties that take fewer kinds of values choose first."""


class Property(msgspec.Struct, frozen=True):
    """A property of a tool's arguments."""

    name: str
    kind: PropertyKind
    is_required: bool
    is_array: bool
    is_absolute: bool
    """Its path must be absolute."""
    choices: frozenset[str]
    """The values of its enum, in lower case."""


def _kind_of(name: str, ability: Ability, description: str = "") -> PropertyKind:
    words = split_name(name)
    if {"pattern", "glob"} & {*words} and ("glob" in description.lower() or ability.does("find", "file")):
        return "glob"
    kinds: list[PropertyKind] = [
        _KINDS[each] for word in reversed(words) for each in (word, concept(word)) if each in _KINDS
    ]
    return kinds[0] if kinds else "text"


def read_properties(root: Schema, ability: Ability, budget: Budget) -> list[Property]:
    """The properties of the arguments; those that take no text have the kind `other`. Raises `BudgetExceeded`."""
    top = resolve(root, root, 0, budget)
    found: list[Property] = []
    for name, schema in named(top, "properties").items():
        shape = resolve(root, schema, 0, budget)
        is_array = "array" in types_of(shape)
        item = resolve(root, shape.get("items"), 0, budget) if is_array and "prefixItems" not in shape else shape
        is_plain = not item.keys() & {"enum", "const", "format", "pattern"}
        description = str(shape.get("description"))
        kind = _kind_of(name, ability, description) if is_plain and "string" in types_of(item) else "other"
        choices = frozenset(str(choice).lower() for choice in listed(shape, "enum"))
        is_required, is_absolute = name in listed(top, "required"), "absolute" in description.lower()
        found.append(Property(name, kind, is_required, is_array, is_absolute and kind == "path", choices))
    return found


class PromptValues:
    """The values of a prompt that have no place yet."""

    def __init__(self, ability: Ability, prompt: UserPrompt, excluded: set[str]) -> None:
        """`excluded` are values, in lower case, that are not for properties that take any text."""
        placed = {ability.tool.name.lower(), ability.short_name.lower(), *excluded}
        tokens = [token for token in prompt.tokens if token.kind != "word" and token.text.lower() not in placed]
        self._left = [*tokens, *(Token(name, "name", 0, 0) for name in prompt.names(excluded))]
        words = ["", "", *(token.text.lower() for token in prompt.tokens)]
        self._scopes = [
            token
            for index, token in enumerate(prompt.tokens)
            if {*words[index : index + 2]} & {"in", "under", "inside", "within"} and token.kind in _VALUES_FOR["path"]
        ]
        """What says where to look: `in src/`."""
        self._commands = (prompt.commands or prompt.read_commands()) if ability.is_shell else []

    def take(self, kind: PropertyKind, count: int) -> list[str]:
        """The best values for a property of this kind; all of them are of one kind themselves."""
        if kind == "command":
            return self._commands[:count]
        for value_kind in _VALUES_FOR.get(kind, ()):
            found = [value for value in self._left if value.kind == value_kind][:count]
            if found:
                self._left = [value for value in self._left if value not in found]
                return list(dict.fromkeys(value.text for value in found))
        return []

    def take_scope(self, needed: int) -> list[str]:
        """The path that says where to look, unless only `needed` values are left to look for."""
        scopes = [value for value in self._left if value in self._scopes][-1:] if len(self._left) > needed else []
        self._left = [value for value in self._left if value not in scopes]
        return [value.text for value in scopes]


def assign_values(
    properties: list[Property], ability: Ability, prompt: UserPrompt, max_calls: int
) -> dict[str, list[str]]:
    """The values of the prompt by property. Several for a property that is no array are for several calls."""
    texts = [each for each in properties if each.kind not in ("remark", "other")]
    given = {each.name: [prompt.pairs[each.name.lower()]] for each in texts if each.name.lower() in prompt.pairs}
    choices = {choice for each in properties for choice in each.choices}
    values = PromptValues(ability, prompt, {*choices, *(value.lower() for [value] in given.values())})
    required = [each for each in texts if each.is_required]
    optional = [each for each in texts if not each.is_required]
    if not required:
        # The first property that the prompt has a value for is what the call is about.
        for each in optional:
            found = values.take(each.kind, max_calls)
            if found:
                return {each.name: found, **given}
        name = next((each.name for each in optional if each.kind == "text"), "")
        subject = find_subject(ability, prompt)
        return {name: [subject], **given} if name and subject != prompt.whole else given
    kinds = [each.kind for each in required]
    scope = next((each.name for each in optional if each.kind == "path"), "")
    if scope and "path" not in kinds:
        given.setdefault(scope, values.take_scope(0 if "glob" in kinds else 1))
    for each in sorted(required, key=lambda each: _CHOICE_ORDER.index(each.kind)):
        count = 100 if each.is_array and each.kind != "command" else max_calls if len(required) == 1 else 1
        given.setdefault(each.name, values.take(each.kind, count))
    return {name: found for name, found in given.items() if found}


def find_subject(ability: Ability, prompt: UserPrompt) -> str:
    """What the prompt is about: its text without the words that led to the tool; all of it if there are none."""
    own = {ability.tool.name.lower(), ability.short_name.lower()}
    meanings = {ability.verb, *ability.objects}
    empty = {"call", "use", "tool", "function", "please", *QUESTIONS}

    def leads(token: Token) -> bool:
        low = token.text.lower()
        if token.kind != "word" or low in own:
            return low in own
        return not token.concept or token.concept in meanings | RETRIEVING or low in empty

    is_about = prompt.concepts & meanings or any(token.text.lower() in own for token in prompt.tokens)
    rest = [token for token in prompt.tokens if not leads(token)] if is_about else []
    return prompt.text[rest[0].start : rest[-1].end] if rest else prompt.whole or "demo"


class Hints:
    """What a prompt suggests for the properties of one call."""

    def __init__(self, ability: Ability, prompt: UserPrompt, given: dict[str, list[str]]) -> None:
        self._ability = ability
        self._prompt = prompt
        self.given = given
        """The values that the prompt has, by property."""
        self.words = [word.strip(".,;:!?()\"'`<>") for word in prompt.text.split()]

    def fallback(self, name: str) -> str:
        """A text for a property that the prompt has none for."""
        match _kind_of(name, self._ability):
            case "remark":
                return " ".join(self._prompt.whole.split())[:80] or "demo"
            case "message":
                return self._prompt.text.strip() or "demo"
            case "command":
                return "ls"
            case "glob":
                return "*"
            case "path" if self._ability.does("list", "directory") or "directory" in name.lower():
                return "."
            case _:
                return find_subject(self._ability, self._prompt)

    def items(self, name: str) -> list[str]:
        """The items of an array: several values, or a command for a shell."""
        given = self.given.get(name, [])
        return ["bash", "-lc", *(given or ["ls"])] if _kind_of(name, self._ability) == "command" else given

    def numbers(self, name: str, index: int) -> list[float]:
        """The number that the prompt gives by the property's name, or the one at this index, or the first."""
        numbers = self._prompt.values("number")
        chosen = self._prompt.pairs.get(name.lower()) or "".join(numbers[index : index + 1] or numbers[:1])
        digits = chosen[:15] if chosen in numbers else ""
        return [float(digits) if "." in digits else int(digits)] if digits else []

    def mentions(self, value: object) -> bool:
        """Whether the prompt has a value of an enum, or the name of a switch; shorter words may mean something else."""
        return isinstance(value, str) and len(value) >= 3 and self._prompt.mentions(value)

    def gives(self, name: str, shape: Schema) -> bool:
        """Whether the prompt clearly gives the value of an optional property."""
        return (
            name.lower() in self._prompt.pairs or name in self.given or any(map(self.mentions, listed(shape, "enum")))
        )
