"""The arguments of a call: the values and words of the prompt, put where the tool's schema has a place for them.

    get_weather(city)             The weather in Paris and Rome?   {"city":"Paris"}   {"city":"Rome"}
    Grep(pattern, path?)          Search "foo" in src/             {"pattern":"foo","path":"src/"}
    Write(file_path, content)     Write "hi" to a.txt              {"file_path":"/home/me/a.txt","content":"hi"}
    anything(limit?)              … limit=5                        {…,"limit":5}

Where a call is about one thing and the prompt has several, there are several calls. Optional properties are left out
unless the prompt gives their value. A shell gets no words of the prompt as its command, unless they clearly are one.
The arguments are checked by a JSON Schema validator, and what does not fit is reported with them.
"""

from collections.abc import Sequence
from posixpath import join, normpath
from typing import Any, cast

import msgspec

from toolwire.adapt.arguments import Validate
from toolwire.adapt.retype import Path, Problem
from toolwire.adapt.schemas_walk import Schema, listed, named
from toolwire.backends.demo.choosing import Ability
from toolwire.backends.demo.hints import Hints, PromptValues, assign_values, find_subject, read_properties
from toolwire.backends.demo.prompt import UserPrompt
from toolwire.backends.demo.schema import pick_number, pick_text, resolve, types_of
from toolwire.core.regex import Budget, BudgetExceeded

MAX_STEPS = 60_000
"""Steps that the schema of one call may take."""

MAX_ITEMS = 256
"""Items of an array that a schema can require."""

MAX_DEPTH = 16
"""Nesting of the arguments of one call."""

MAX_OPTIONS = 4
"""Alternatives of `anyOf` and `oneOf` that are tried."""

RECURSION_DEPTH = 4
"""From this depth on the last alternative is taken, which is null if there is one: a recursive schema ends."""


class Arguments(msgspec.Struct, frozen=True):
    """The arguments of a call, and where they do not fit the schema."""

    text: str
    problems: Sequence[str] = ()


def calls_for(
    ability: Ability, prompt: UserPrompt, directory: str, max_calls: int, validate: Validate
) -> list[Arguments]:
    """The arguments of the calls that the prompt asks for, at least of one.

    `directory` is the client's working directory, or empty. `validate` checks arguments against a schema.
    """
    schema = ability.tool.parameters
    if schema is None:
        return [Arguments("{}")]
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
        return [_fill(root, bytes(schema), Hints(ability, prompt, each), validate) for each in calls]
    except BudgetExceeded:
        return [Arguments("{}", ["its schema requires too much"])]
    except (TypeError, ValueError, AttributeError, LookupError, ArithmeticError):  # the schema is a client's
        return [Arguments("{}", ["its schema cannot be used"])]


def input_for(ability: Ability, prompt: UserPrompt) -> str:
    """The input of a custom tool: what the prompt is about."""
    return (PromptValues(ability, prompt, set()).take("text", 1) or [find_subject(ability, prompt)])[0]


def _fill(root: Schema, schema: bytes, hints: Hints, validate: Validate) -> Arguments:
    """Arguments that fit the schema, or else the first ones with their problems."""
    made: list[Arguments] = []
    budget = Budget(MAX_STEPS)
    for option in range(MAX_OPTIONS):
        filler = _Filler(root, hints, option, budget)
        try:
            text = msgspec.json.encode(filler.value(root, ())).decode()
        except (BudgetExceeded, RecursionError):
            made.append(Arguments("{}", ["its schema requires too much"]))
            continue
        problems = validate(schema, text)
        if problems is None:
            return Arguments(text, ["its schema cannot be checked"])
        made.append(Arguments(text, [*dict.fromkeys(map(str, (*filler.unfilled, *problems)))]))
        if not made[-1].problems:
            return made[-1]
    return made[0]


class _Filler:
    """Fills a schema, with the alternative at the index `option` of each `anyOf` and `oneOf`."""

    def __init__(self, root: Schema, hints: Hints, option: int, budget: Budget) -> None:
        self._root = root
        self._hints = hints
        self._option = option
        self._budget = budget
        self._numbers = 0  # how many were filled
        self.unfilled: list[Problem] = []
        """Keywords that are not satisfied, or not known to be, and that the validator does not check."""

    def value(self, schema: object, path: Path) -> Any:
        """A value for the schema at this path. Raises `BudgetExceeded`."""
        if len(path) > MAX_DEPTH:
            raise BudgetExceeded
        self._budget.spend(10)
        shape = resolve(self._root, schema, self._option if len(path) < RECURSION_DEPTH else -1, self._budget)
        if "const" in shape:
            return shape["const"]
        if "enum" in shape:
            choices = listed(shape, "enum")
            return next(filter(self._hints.mentions, choices), choices[0])
        name = next((step for step in reversed(path) if isinstance(step, str)), "")
        prepared = [*([shape["default"]] if "default" in shape else []), *listed(shape, "examples")[:3]]
        match types_of(shape)[0] if path else "object":
            case "object":
                return self._object(shape, path)
            case "array":
                return self._hints.items(name) or self._array(shape, path)
            case "string":
                texts = [*self._hints.given.get(name, []), *map(str, prepared), self._hints.fallback(name)]
                text, fits = pick_text(shape, texts, self._hints.words, self._budget)
                self.unfilled += [] if fits else [Problem(path, "pattern")]
                return text
            case "integer" | "number" as type:
                numbers = self._hints.numbers(name, self._numbers)
                self._numbers += 1
                return pick_number(shape, [*numbers, *prepared], whole=type == "integer")
            case "boolean":
                return prepared[0] if prepared else self._hints.mentions(name)
            case _:
                return None

    def _object(self, shape: Schema, path: Path) -> Schema:
        properties, required = named(shape, "properties"), listed(shape, "required")
        names = dict.fromkeys([*(name for name in properties if name in required), *required])
        optional = [name for name in properties if name not in names]
        if not path:
            shapes = {name: resolve(self._root, properties[name], 0, self._budget) for name in optional}
            names |= dict.fromkeys(name for name in optional if self._hints.gives(name, shapes[name]))
        names |= dict.fromkeys(optional[: max(shape.get("minProperties", 0) - len(names), 0)])
        if names and "patternProperties" in shape:
            self.unfilled.append(Problem(path, "patternProperties"))
        others = shape.get("additionalProperties", True)
        return {name: self.value(properties.get(name, others), (*path, name)) for name in names}

    def _array(self, shape: Schema, path: Path) -> list[Any]:
        items = shape.get("items", True)
        prefix = listed(shape, "items") or listed(shape, "prefixItems")
        count = min(max(shape.get("minItems", 0), len(prefix), 1), shape.get("maxItems", MAX_ITEMS), MAX_ITEMS)
        schemas = [*prefix[:count], *[items] * (count - len(prefix))]
        return [self.value(each, (*path, index)) for index, each in enumerate(schemas)]
