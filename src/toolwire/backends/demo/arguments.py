"""The arguments of a call, made from the values and the words of the prompt.

    get_weather(city)             The weather in Paris and Rome?   {"city":"Paris"}   {"city":"Rome"}
    Grep(pattern, path?)          Search "foo" in src/             {"pattern":"foo","path":"src/"}
    Write(file_path, content)     Write "hi" to a.txt              {"file_path":"/home/me/a.txt","content":"hi"}
    anything(limit?)              … limit=5                        {…,"limit":5}

Where a call is about one thing and the prompt has several, there are several calls. A shell gets no words of the prompt
as its command, unless they clearly are one.
"""

import msgspec

from toolwire.backends.demo.abilities import Ability
from toolwire.backends.demo.choosing import Prompt
from toolwire.backends.demo.forms import Form, Kind
from toolwire.backends.demo.hints import Given, Hints, subject_of
from toolwire.backends.demo.schema.fill import fill
from toolwire.backends.demo.words import Kind as ValueKind

_ORDER: dict[Kind, tuple[ValueKind, ...]] = {
    "path": ("path", "code", "quoted"),
    "glob": ("code", "quoted", "path"),
    "url": ("url", "code", "quoted"),
    "message": ("quoted", "code"),
    "text": ("code", "quoted", "path", "url", "name", "number"),
}
_CHOOSY: tuple[Kind, ...] = ("command", "path", "url", "glob", "remark", "message", "text")
"""Those that take less choose first."""
_WITHIN = ("in", "under", "inside", "within")


class _Value(msgspec.Struct, frozen=True):
    text: str
    kind: ValueKind
    is_scope: bool
    """It says where to look: `in src/`."""


class _Values:
    """The values of a prompt that have no place yet."""

    def __init__(self, ability: Ability, prompt: Prompt, form: Form | None = None) -> None:
        form = form or Form(ability)
        named = {prompt.pairs.get(name.lower()) for name in (*form.required, *form.optional)}
        placed = {ability.tool.name.lower(), ability.short_name.lower(), *named}
        before = ["", "", *(token.text.lower() for token in prompt.tokens)]
        self._left = [
            _Value(token.text, token.kind, any(word in _WITHIN for word in before[at : at + 2]))
            for at, token in enumerate(prompt.tokens)
            if token.kind != "word" and not {token.text, token.text.lower()} & placed
        ]
        self._left.extend(_Value(name, "name", is_scope=False) for name in prompt.names(form.choices))
        self._commands = prompt.commands or prompt.looking_commands if ability.is_shell else []

    def take(self, kind: Kind, most: int) -> list[str]:
        """The values that are best for a property of this kind; all are of the same kind themselves."""
        if kind == "command" and self._commands:
            return self._commands[:most]
        for value_kind in _ORDER.get(kind, ()):
            found = [value for value in self._left if value.kind == value_kind][:most]
            if found:
                self._left = [value for value in self._left if value not in found]
                return list(dict.fromkeys(value.text for value in found))
        return []

    def take_scope(self, least: int) -> list[str]:
        """The path that says where to look, if so many values are left to look for."""
        scopes = [value for value in self._left if value.is_scope and value.kind in _ORDER["path"]]
        if not scopes or len(self._left) <= least:
            return []
        self._left.remove(scopes[-1])
        return [scopes[-1].text]


def calls_for(ability: Ability, prompt: Prompt, directory: str, most: int) -> list[str]:
    """The arguments of the calls that the prompt asks for: at least one call, and at most so many."""
    form = Form(ability)
    given = _given(form, ability, prompt, most)
    several = [name for name, values in given.items() if len(values) > 1 and name not in form.arrays]
    calls = [{**given, several[0]: [value]} for value in given[several[0]]] if several else [given]
    schema = ability.tool.parameters
    if schema is None:
        return ["{}"]
    return [fill(schema, Hints(ability, prompt, directory, each)).decode() for each in calls]


def input_for(ability: Ability, prompt: Prompt) -> str:
    """The input of a custom tool: what the prompt is about."""
    return (_Values(ability, prompt).take("text", 1) or [subject_of(ability, prompt)])[0]


def _given(form: Form, ability: Ability, prompt: Prompt, most: int) -> Given:
    """The values of the prompt by property."""
    values = _Values(ability, prompt, form)
    if not form.required:
        return _given_freely(form, ability, prompt, values, most)
    given: Given = {}
    scope = next((name for name, kind in form.optional.items() if kind == "path"), "")
    if scope and "path" not in form.required.values():
        given[scope] = values.take_scope(0 if "glob" in form.required.values() else 1)
    for name, kind in sorted(form.required.items(), key=lambda pair: _CHOOSY.index(pair[1])):
        count = 100 if name in form.arrays else most if len(form.required) == 1 else 1
        given[name] = values.take(kind, count)
    return {name: found for name, found in given.items() if found}


def _given_freely(form: Form, ability: Ability, prompt: Prompt, values: _Values, most: int) -> Given:
    """Without a required property, the first that the prompt has a value for is what the call is about."""
    for name, kind in form.optional.items():
        found = values.take(kind, most)
        if found:
            return {name: found}
    text = next((name for name, kind in form.optional.items() if kind == "text"), "")
    subject = subject_of(ability, prompt)
    return {text: [subject]} if text and subject and subject != prompt.whole else {}
