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
from toolwire.backends.demo.prompt import QUESTIONS, RETRIEVING, Token, UserPrompt, ValueKind, find_concept, split_name
from toolwire.backends.demo.schema import pick_number, pick_text, resolve, types_of
from toolwire.core.regex import Budget, BudgetExceeded
from toolwire.core.request import Tool

MAX_STEPS = 60_000
"""Maximum steps that the schema of one call may take."""

MAX_ARRAY_ITEMS = 256
"""Maximum items that a schema can require of an array."""

MAX_ARGUMENT_DEPTH = 16
"""Maximum nesting of the arguments of one call."""

RECURSION_DEPTH = 4
"""From this depth on, the last alternative is taken (null if there is one), so that a recursive schema ends."""


class PlannedCall(msgspec.Struct, frozen=True):
    """A call to make: the arguments, or the input of a custom tool."""

    tool: Tool
    text: str
    remark: str = ""
    """The sentence that says which arguments do not fit the schema; empty if all do."""


PropertyKind: TypeAlias = Literal["path", "command", "url", "glob", "remark", "message", "text"]
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
_CHOICE_ORDER: tuple[PropertyKind, ...] = ("command", "path", "url", "glob", "message", "text")
"""Properties that take fewer kinds of values choose first."""


Values: TypeAlias = dict[str, list[str]]
"""The values of a prompt by property."""


def _kind_of(name: str, ability: Ability, description: str = "") -> PropertyKind:
    words = split_name(name)
    if {"pattern", "glob"} & {*words} and ("glob" in description.lower() or ability.does_only("find", "file")):
        return "glob"
    kinds: list[PropertyKind] = [
        _KINDS[each] for word in reversed(words) for each in (word, find_concept(word)) if each in _KINDS
    ]
    return kinds[0] if kinds else "text"


class PromptValues:
    """The values of a prompt that are not assigned to a property yet. `excluded` ones, in lower case, are left out."""

    def __init__(self, ability: Ability, prompt: UserPrompt, excluded: set[str]) -> None:
        placed = {ability.tool.name.lower(), ability.short_name.lower(), *excluded}
        tokens = [token for token in prompt.tokens if token.kind != "word" and token.text.lower() not in placed]
        self._left = [*tokens, *(Token(name, "name", 0, 0) for name in prompt.find_names(excluded))]
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

    def take_scope(self) -> list[str]:
        """The path to search in: the last one after a word such as `in`."""
        scopes = [value for value in self._left if value.kind == "path" and value.is_scope][-1:]
        self._left = [value for value in self._left if value not in scopes]
        return [value.text for value in scopes]


def assign_values(
    root: Schema, ability: Ability, prompt: UserPrompt, directory: str, max_calls: int, budget: Budget
) -> list[Values]:
    """The values of the prompt by property, for each call. Raises `BudgetExceeded`."""
    top = resolve(root, root, budget)
    shapes = {name: resolve(root, schema, budget) for name, schema in mapping_under(top, "properties").items()}
    arrays = {name for name, shape in shapes.items() if "array" in types_of(shape)}
    kinds: dict[str, PropertyKind] = {}  # of the properties that take text of the prompt
    for name, shape in shapes.items():
        has_items = name in arrays and "prefixItems" not in shape
        item = resolve(root, shape.get("items"), budget) if has_items else shape
        kind = _kind_of(name, ability, str(shape.get("description")))
        if kind != "remark" and "string" in types_of(item) and not item.keys() & {"enum", "const", "format", "pattern"}:
            kinds[name] = kind
    given = {name: [prompt.pairs[name.lower()]] for name in kinds if name.lower() in prompt.pairs}
    choices = {str(choice).lower() for shape in shapes.values() for choice in list_under(shape, "enum")}
    values = PromptValues(ability, prompt, {*choices, *(value.lower() for [value] in given.values())})
    required = sorted(kinds.keys() & {*list_under(top, "required")}, key=[*kinds].index)
    if required:
        scope = next((name for name, kind in kinds.items() if kind == "path"), "")
        if scope and "path" not in map(kinds.__getitem__, required):
            given.setdefault(scope, values.take_scope())
        for name in sorted(required, key=lambda name: _CHOICE_ORDER.index(kinds[name])):
            count = 100 if name in arrays and kinds[name] != "command" else max_calls if len(required) == 1 else 1
            given.setdefault(name, values.take(kinds[name], count))
    else:
        for name, kind in kinds.items():  # the call is about the first property that the prompt has a value for
            if found := values.take(kind, max_calls):
                given = {name: found, **given}
                break
        else:
            name, subject = next((name for name in kinds if kinds[name] == "text"), ""), find_subject(ability, prompt)
            given = {name: [subject], **given} if name and subject != prompt.whole else given
    for name, paths in given.items():
        if directory and kinds[name] == "path" and "absolute" in str(shapes[name].get("description")).lower():
            given[name] = [path if path[:1] == "~" else normpath(join(directory, path)) for path in paths]
    given = {name: found for name, found in given.items() if found}
    several = (name for name, found in given.items() if len(found) > 1)
    name = next((name for name in several if name not in arrays or kinds[name] == "command"), "")
    return [{**given, name: [value]} for value in given[name]] if name else [given]


def find_subject(ability: Ability, prompt: UserPrompt) -> str:
    """The subject of the prompt: its text without the words that led to the tool, or all of it."""
    own = {ability.tool.name.lower(), ability.short_name.lower()}
    meanings = {ability.verb, *ability.objects}
    empty = {"call", "use", "tool", "function", "please", *QUESTIONS}

    def leads_to_tool(token: Token) -> bool:
        low = token.text.lower()
        if token.kind != "word" or low in own:
            return low in own
        return not token.concept or token.concept in meanings | RETRIEVING or low in empty

    is_about = prompt.concepts & meanings or any(token.text.lower() in own for token in prompt.tokens)
    rest = [token for token in prompt.tokens if not leads_to_tool(token)] if is_about else []
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
    budget = Budget(MAX_STEPS)
    try:
        calls = assign_values(root, ability, prompt, directory, max_calls, budget)
        return [_fill_arguments(root, ability, prompt, each, validate, budget) for each in calls]
    except (BudgetExceeded, RecursionError):
        problem = "its schema requires too much"
    except (TypeError, ValueError, AttributeError, LookupError, ArithmeticError):  # the schema is a client's
        problem = "its schema cannot be used"
    return [PlannedCall(tool, "{}", _write_remark(tool, problem))]


def _write_remark(tool: Tool, *problems: str) -> str:
    return f"The demo model cannot fill the arguments of {tool.name}: {', '.join(problems)}."


def _fill_arguments(
    root: Schema, ability: Ability, prompt: UserPrompt, given: Values, validate: Validate, budget: Budget
) -> PlannedCall:
    """A call with arguments for the schema, and a remark about those that do not fit it."""
    tool, filler = ability.tool, _Filler(root, ability, prompt, given, budget)
    text = msgspec.json.encode(filler.fill(root, ())).decode()
    found = validate(bytes(tool.parameters or b""), text)
    if found is None:
        return PlannedCall(tool, text, _write_remark(tool, "its schema cannot be checked"))
    problems = dict.fromkeys(map(str, (*filler.unfilled, *found)))
    return PlannedCall(tool, text, _write_remark(tool, *problems) if problems else "")


class _Filler:
    """Fills a schema with the values that a prompt gives and simple ones."""

    def __init__(self, root: Schema, ability: Ability, prompt: UserPrompt, given: Values, budget: Budget) -> None:
        self._root = root
        self._ability = ability
        self._prompt = prompt
        self._given = given
        self._budget = budget
        self._numbers = 0  # how many were filled
        self.unfilled: list[Problem] = []
        """Keywords that are not satisfied, or not known to be, and that the validator does not check."""

    def fill(self, schema: object, path: Path) -> Any:
        """A value for the schema at this path. Raises `BudgetExceeded`."""
        if len(path) > MAX_ARGUMENT_DEPTH:
            raise BudgetExceeded
        self._budget.spend(10)
        shape = resolve(self._root, schema, self._budget, takes_last=len(path) >= RECURSION_DEPTH)
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
        if not path:
            for name, schema in properties.items():
                choices = list_under(resolve(self._root, schema, self._budget), "enum")
                if name in self._given or name.lower() in self._prompt.pairs or any(map(self._mentions, choices)):
                    names[name] = None  # the prompt gives its value
        if names and "patternProperties" in shape:
            self.unfilled.append(Problem(path, "patternProperties"))
        others = shape.get("additionalProperties", True)
        return {name: self.fill(properties.get(name, others), (*path, name)) for name in names}

    def _fill_array(self, shape: Schema, path: Path, name: str) -> list[Any]:
        """Several values of the prompt, a command for a shell, or as many items as the schema requires."""
        given = self._given.get(name, [])
        if _kind_of(name, self._ability) == "command":
            return [
                *(() if name.endswith("s") else ("bash", "-lc")),
                *(given or ["ls"]),
            ]  # commands, or one's arguments
        if given:
            return [*given]
        prefix = list_under(shape, "items") or list_under(shape, "prefixItems")
        count = min(max(shape.get("minItems", 1), len(prefix)), shape.get("maxItems", MAX_ARRAY_ITEMS), MAX_ARRAY_ITEMS)
        schemas = [*prefix, *[shape.get("items", True)] * count][:count]
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
            case "path" if self._ability.does_only("list", "directory") or "directory" in name.lower():
                return "."
            case _:
                return find_subject(self._ability, self._prompt)

    def _take_number(self, name: str) -> list[float]:
        """The number that the prompt gives by the property's name, or its next one, or else its first."""
        numbers = self._prompt.find_values("number")
        chosen = self._prompt.pairs.get(name.lower()) or "".join(numbers[self._numbers :][:1] or numbers[:1])
        self._numbers += 1
        digits = chosen[:15] if chosen in numbers else ""
        return [float(digits) if "." in digits else int(digits)] if digits else []

    def _mentions(self, value: object) -> bool:
        """Whether the prompt has this enum value or switch name. One or two letters may mean something else."""
        return isinstance(value, str) and len(value) >= 3 and self._prompt.mentions(value)
