"""The arguments of a call: the values and words of the prompt, assigned to the properties of the tool's schema.

    get_weather(city)             The weather in Paris and Rome?   {"city":"Paris"}   {"city":"Rome"}
    Grep(pattern, path?)          Search "foo" in src/             {"pattern":"foo","path":"src/"}
    Write(file_path, content)     Write "hi" to a.txt              {"file_path":"/home/me/a.txt","content":"hi"}
    anything(limit?)              … limit=5                        {…,"limit":5}

If a call takes one value and the prompt has several, there are several calls. Optional properties are left out
unless the prompt gives their value. A shell gets no words of the prompt as its command, unless they clearly are one.
The arguments are checked by a JSON Schema validator, and what does not fit is reported with them.
"""

from posixpath import join, normpath
from typing import Any, Literal, TypeAlias, cast

import msgspec

from toolwire.adapt.arguments import Validate
from toolwire.adapt.repair import Path, Problem
from toolwire.adapt.schemas_walk import Schema, list_under, mapping_under
from toolwire.backends.demo.choosing import Ability
from toolwire.backends.demo.prompt import QUESTIONS, RETRIEVING, Token, UserPrompt, ValueKind, concept, split_name
from toolwire.backends.demo.schema import pick_number, pick_text, resolve, types_of
from toolwire.core.regex import Budget, BudgetExceeded
from toolwire.core.request import Tool

MAX_STEPS = 60_000
"""Maximum steps that the schema of one call may take."""

MAX_ARRAY_ITEMS = 256
"""Maximum items that a schema can require of an array."""

MAX_ARGUMENT_DEPTH = 16
"""Maximum nesting of the arguments of one call."""

MAX_ALTERNATIVES = 4
"""Maximum alternatives of `anyOf` and `oneOf` that are tried."""

_TOO_MUCH = "its schema requires too much"

RECURSION_DEPTH = 4
"""From this depth on, the last alternative is taken (null if there is one), so that a recursive schema ends."""


class PlannedCall(msgspec.Struct, frozen=True):
    """A call to make: the arguments, or the input of a custom tool."""

    tool: Tool
    text: str
    remark: str = ""
    """The sentence that says which arguments do not fit the schema; empty if all do."""


PropertyKind: TypeAlias = Literal["path", "command", "url", "glob", "remark", "message", "text", "other"]
"""The content of a property. A remark explains the call to people; a message is a longer text."""

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


Values: TypeAlias = dict[str, list[str]]
"""The values of a prompt by property."""


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
    for name, schema in mapping_under(top, "properties").items():
        shape = resolve(root, schema, 0, budget)
        is_array = "array" in types_of(shape)
        item = resolve(root, shape.get("items"), 0, budget) if is_array and "prefixItems" not in shape else shape
        is_plain = not item.keys() & {"enum", "const", "format", "pattern"}
        description = str(shape.get("description"))
        kind = _kind_of(name, ability, description) if is_plain and "string" in types_of(item) else "other"
        choices = frozenset(str(choice).lower() for choice in list_under(shape, "enum"))
        is_required, is_absolute = name in list_under(top, "required"), "absolute" in description.lower()
        found.append(Property(name, kind, is_required, is_array, is_absolute and kind == "path", choices))
    return found


class PromptValues:
    """The values of a prompt that are not assigned to a property yet."""

    def __init__(self, ability: Ability, prompt: UserPrompt, excluded: set[str]) -> None:
        """`excluded` values, in lower case, are left out."""
        placed = {ability.tool.name.lower(), ability.short_name.lower(), *excluded}
        tokens = [token for token in prompt.tokens if token.kind != "word" and token.text.lower() not in placed]
        self._left = [*tokens, *(Token(name, "name", 0, 0) for name in prompt.names(excluded))]
        words = ["", "", *(token.text.lower() for token in prompt.tokens)]
        self._scopes = [
            token
            for index, token in enumerate(prompt.tokens)
            if {*words[index : index + 2]} & {"in", "under", "inside", "within"} and token.kind in _VALUES_FOR["path"]
        ]
        """The values that limit a search: `in src/`."""
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
        """The path to search in, if more than `needed` values are left."""
        scopes = [value for value in self._left if value in self._scopes][-1:] if len(self._left) > needed else []
        self._left = [value for value in self._left if value not in scopes]
        return [value.text for value in scopes]


def assign_values(properties: list[Property], ability: Ability, prompt: UserPrompt, max_calls: int) -> Values:
    """Assign values to properties. Several values of a property that is not an array are for several calls."""
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
    """The subject of the prompt: its text without the words that led to the tool, or all of it."""
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


def plan_calls(
    ability: Ability, prompt: UserPrompt, directory: str, max_calls: int, validate: Validate
) -> list[PlannedCall]:
    """The calls of a tool that the prompt asks for, at least one.

    `directory` is the client's working directory, or empty. `validate` checks arguments against a schema.
    """
    tool, schema = ability.tool, ability.tool.parameters
    if tool.kind != "function":
        taken = PromptValues(ability, prompt, set()).take("text", 1)
        return [PlannedCall(tool, taken[0] if taken else find_subject(ability, prompt))]
    if schema is None:
        return [PlannedCall(tool, "{}")]
    decoded: Any = msgspec.json.decode(schema)
    root = cast("Schema", decoded) if isinstance(decoded, dict) else Schema()
    try:
        properties = read_properties(root, ability, Budget(MAX_STEPS))
        given = assign_values(properties, ability, prompt, max_calls)
        if directory:
            for name in (each.name for each in properties if each.is_absolute and each.name in given):
                given[name] = [path if path[:1] == "~" else normpath(join(directory, path)) for path in given[name]]
        arrays = [each.name for each in properties if each.is_array and each.kind != "command"]
        several = [name for name, values in given.items() if len(values) > 1 and name not in arrays]
        calls = [{**given, several[0]: [value]} for value in given[several[0]]] if several else [given]
        return [_fill(root, ability, prompt, each, validate) for each in calls]
    except BudgetExceeded:
        return [_unfilled(tool, "{}", _TOO_MUCH)]
    except (TypeError, ValueError, AttributeError, LookupError, ArithmeticError):  # the schema is a client's
        return [_unfilled(tool, "{}", "its schema cannot be used")]


def _unfilled(tool: Tool, text: str, *problems: str) -> PlannedCall:
    return PlannedCall(tool, text, f"The demo model cannot fill the arguments of {tool.name}: {', '.join(problems)}.")


def _fill(root: Schema, ability: Ability, prompt: UserPrompt, given: Values, validate: Validate) -> PlannedCall:
    """A call with arguments that fit the schema, or else the first one that was tried, with its problems."""
    tool, first, budget = ability.tool, None, Budget(MAX_STEPS)
    for option in range(MAX_ALTERNATIVES):
        filler = _Filler(root, ability, prompt, given, option, budget)
        try:
            text = msgspec.json.encode(filler.fill(root, ())).decode()
        except (BudgetExceeded, RecursionError):
            first = first or _unfilled(tool, "{}", _TOO_MUCH)
            continue
        found = validate(bytes(tool.parameters or b""), text)
        if found is None:
            return _unfilled(tool, text, "its schema cannot be checked")
        problems = dict.fromkeys(map(str, (*filler.unfilled, *found)))
        if not problems:
            return PlannedCall(tool, text)
        first = first or _unfilled(tool, text, *problems)
    return first or _unfilled(tool, "{}", _TOO_MUCH)


class _Filler:
    """Fills a schema, with the alternative at the index `option` of each `anyOf` and `oneOf`."""

    def __init__(
        self, root: Schema, ability: Ability, prompt: UserPrompt, given: Values, option: int, budget: Budget
    ) -> None:
        self._root = root
        self._ability = ability
        self._prompt = prompt
        self._given = given
        self._option = option
        self._budget = budget
        self._numbers = 0  # how many were filled
        self.unfilled: list[Problem] = []
        """Keywords that are not satisfied, or not known to be, and that the validator does not check."""

    def fill(self, schema: object, path: Path) -> Any:
        """A value for the schema at this path. Raises `BudgetExceeded`."""
        if len(path) > MAX_ARGUMENT_DEPTH:
            raise BudgetExceeded
        self._budget.spend(10)
        shape = resolve(self._root, schema, self._option if len(path) < RECURSION_DEPTH else -1, self._budget)
        if "const" in shape:
            return shape["const"]
        if "enum" in shape:
            choices = list_under(shape, "enum")
            return next(filter(self._mentions, choices), choices[0])
        name = next((step for step in reversed(path) if isinstance(step, str)), "")
        prepared = [*([shape["default"]] if "default" in shape else []), *list_under(shape, "examples")[:3]]
        match types_of(shape)[0] if path else "object":
            case "object":
                return self._fill_object(shape, path)
            case "array":
                return self._fill_array(shape, path, name)
            case "string":
                texts = [*self._given.get(name, []), *map(str, prepared), self._default_text(name)]
                text, fits = pick_text(shape, texts, self._prompt.text, self._budget)
                self.unfilled += [] if fits else [Problem(path, "pattern")]
                return text
            case "integer" | "number" as type:
                return pick_number(shape, [*self._take_number(name), *prepared], whole=type == "integer")
            case "boolean":
                return prepared[0] if prepared else self._mentions(name)
            case _:
                return None

    def _fill_object(self, shape: Schema, path: Path) -> Schema:
        properties, required = mapping_under(shape, "properties"), list_under(shape, "required")
        names = dict.fromkeys([*(name for name in properties if name in required), *required])
        optional = [name for name in properties if name not in names]
        if not path:  # optional properties whose value the prompt gives
            shapes = {name: resolve(self._root, properties[name], 0, self._budget) for name in optional}
            names |= dict.fromkeys(
                name
                for name in optional
                if name.lower() in self._prompt.pairs
                or name in self._given
                or any(map(self._mentions, list_under(shapes[name], "enum")))
            )
        names |= dict.fromkeys(optional[: max(shape.get("minProperties", 0) - len(names), 0)])
        if names and "patternProperties" in shape:
            self.unfilled.append(Problem(path, "patternProperties"))
        others = shape.get("additionalProperties", True)
        return {name: self.fill(properties.get(name, others), (*path, name)) for name in names}

    def _fill_array(self, shape: Schema, path: Path, name: str) -> list[Any]:
        """Several values of the prompt, a command for a shell, or as many items as the schema requires."""
        given = self._given.get(name, [])
        if _kind_of(name, self._ability) == "command":
            return ["bash", "-lc", *(given or ["ls"])]
        if given:
            return [*given]
        items = shape.get("items", True)
        prefix = list_under(shape, "items") or list_under(shape, "prefixItems")
        count = min(
            max(shape.get("minItems", 0), len(prefix), 1), shape.get("maxItems", MAX_ARRAY_ITEMS), MAX_ARRAY_ITEMS
        )
        schemas = [*prefix[:count], *[items] * (count - len(prefix))]
        return [self.fill(each, (*path, index)) for index, each in enumerate(schemas)]

    def _default_text(self, name: str) -> str:
        """A text for a property that the prompt has no value for."""
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

    def _take_number(self, name: str) -> list[float]:
        """The number that the prompt gives by the property's name, or its next one, or else its first."""
        numbers = self._prompt.values("number")
        chosen = self._prompt.pairs.get(name.lower()) or "".join(numbers[self._numbers :][:1] or numbers[:1])
        self._numbers += 1
        digits = chosen[:15] if chosen in numbers else ""
        return [float(digits) if "." in digits else int(digits)] if digits else []

    def _mentions(self, value: object) -> bool:
        """Whether the prompt has this enum value or switch name. One or two letters may mean something else."""
        return isinstance(value, str) and len(value) >= 3 and self._prompt.mentions(value)
