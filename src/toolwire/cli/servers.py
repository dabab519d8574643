"""The servers that `toolwire init` asks about, and the entry of each in the settings file."""

import asyncio
import os
import re
from collections.abc import Sequence
from urllib.parse import urlsplit

import msgspec

from toolwire.cli.config import to_toml
from toolwire.cli.questions import Questions
from toolwire.config.decode import looks_like_key
from toolwire.config.presets import PRESETS, Preset, find_placeholder, find_preset, with_preset
from toolwire.config.settings import Backend, Settings, find_address_fault, is_glob, is_loopback
from toolwire.core.display import clean

NONE = "none"
"""The answer for an empty list."""
OTHER = "other"
"""The answer for a server without a preset."""
MAX_MODELS_OFFERED = 20
"""Models of a server that are offered as a default."""


class ServerChoice(msgspec.Struct, frozen=True):
    """One server, and its differences from its preset, if it has one."""

    preset: str = ""
    base_url: str = ""
    key_env: str = ""
    models: tuple[str, ...] = ()
    name: str = ""
    """The name of the backend; the default is that of the preset."""
    kinds: tuple[str, ...] = ()
    """Without a preset: the kinds that the backend can have; the first one is written."""

    @property
    def facts(self) -> Preset:
        """What is known of the server without the file."""
        return PRESETS[self.preset] if self.preset else Preset(urlsplit(self.base_url).netloc)

    @property
    def backend_name(self) -> str:
        return self.name or self.preset


def split_list(answer: str) -> tuple[str, ...]:
    """The words of an answer, between commas."""
    return tuple(word.strip() for word in answer.split(",") if word.strip() not in ("", NONE))


def choose_servers(
    names: Sequence[str], given: ServerChoice, questions: Questions, *, with_titles: bool = False
) -> list[ServerChoice]:
    """Ask about servers, named by preset or by address, each with what is given."""
    chosen: list[ServerChoice] = []
    for name in names:
        if with_titles:
            print(f"\n{PRESETS[name].title if name in PRESETS else 'Another server'}")
        if name in PRESETS:
            server = ask_details(msgspec.structs.replace(given, preset=name), questions)
        else:
            address = name if name != OTHER else ""
            server = ask_server(msgspec.structs.replace(given, base_url=address), questions)
        same = sum(each.backend_name.startswith(server.backend_name) for each in chosen)
        if same:
            server = msgspec.structs.replace(server, name=f"{server.backend_name}-{same + 1}")
        chosen.append(server)
    return chosen


def ask_details(given: ServerChoice, questions: Questions) -> ServerChoice:
    """Ask for the address, key and models of a server with a preset, unless they are given."""
    name, preset = given.preset, given.facts
    url, variable, models = given.base_url, given.key_env, given.models
    if not url and (preset.address or not preset.api_key_env):
        url = questions.ask("Its address", preset.base_url, lambda answer: find_url_fault(answer, preset.address))
    if not variable and preset.api_key_env:
        variable = questions.ask("The variable that holds its key", preset.api_key_env, find_variable_fault)
    if not models:
        offered: tuple[str, ...] = ()
        if not preset.api_key_env:  # a server on this machine, which may be running
            from toolwire.cli.models import list_models

            backend = msgspec.convert(with_preset({"base_url": url or preset.base_url}, name), Backend)
            [listed] = asyncio.run(list_models(Settings(backends=(backend,)), name))
            offered = tuple(model.removeprefix(f"{name}/") for model in listed.models)
        models = _ask_models(offered, name, preset, questions)
    return msgspec.structs.replace(given, base_url=url, key_env=variable, models=models)


def ask_server(given: ServerChoice, questions: Questions) -> ServerChoice:
    """Find out what the server at an address is, and ask for its key and models, unless they are given."""
    from toolwire.check.address import normalise_url
    from toolwire.cli.probe import ModelServer, ServerNotFound, find_server

    found = ModelServer("", (), False)

    def find_fault(url: str, key: str = "") -> str:
        nonlocal found
        try:
            address = normalise_url(url)
            found = asyncio.run(find_server(address, key, find_preset(address)))
        except (ValueError, ServerNotFound) as error:
            return str(error)
        return ""

    questions.ask("Its address", "", find_fault, given.base_url)
    print(clean(f"  {found}"))
    preset = find_preset(found.base_url, found.owner)
    facts = PRESETS[preset] if preset else Preset("")
    preset = preset if facts.kind in found.kinds else ""
    name = preset or _name_server(found.base_url)
    variable = given.key_env
    if found.refuses_key:
        url = found.base_url

        def find_key_fault(variable: str) -> str:
            key = os.environ.get(variable, "").strip()
            fault = find_variable_fault(variable) or (key and find_fault(url, key))
            return fault or (f"the key in {variable} is refused" if key and found.refuses_key else "")

        default = facts.api_key_env or _name_variable(name)
        variable = questions.ask("The variable that holds its key", default, find_key_fault, variable)
        if not found.refuses_key:
            print(clean(f"  {found}"))
    kinds = found.kinds
    if len(kinds) > 1 and not preset:
        names = ", ".join(kinds)
        kind = questions.ask(f"Its API ({names})", kinds[0], lambda word: "" if word in kinds else f"one of {names}")
        kinds = (kind, *(each for each in kinds if each != kind))
    models = given.models or _ask_models(found.models, name, facts, questions)
    return ServerChoice(preset, found.base_url, variable, models, "" if preset else name, () if preset else kinds)


def _ask_models(offered: tuple[str, ...], name: str, preset: Preset, questions: Questions) -> tuple[str, ...]:
    others = f"are matched by {', '.join(preset.models)}" if preset.models else f"are requested as {name}/MODEL"
    question = f"Models by name, with commas; the first is the default (all others {others})"
    return split_list(questions.ask(question, ", ".join(offered[:MAX_MODELS_OFFERED]) or NONE))


def _name_server(url: str) -> str:
    """A name for a backend, from its host: `together` for `api.together.xyz`."""
    host = urlsplit(url).hostname or ""
    if is_loopback(host):
        return "local"
    label = next((label for label in host.split(".") if label not in ("api", "www")), "")
    return "server" if label.isdecimal() or ":" in host else label


def _name_variable(name: str) -> str:
    """The usual name of a variable that holds the key for a backend."""
    return re.sub(r"\W|^(?=\d)", "_", f"{name}_API_KEY").upper()


def find_url_fault(url: str, form: str = "") -> str:
    if form and (not url or find_placeholder(url, form)):
        return f"it has the form {form}"
    return f"{url!r} is not an address: {find_address_fault(url)}" if find_address_fault(url) else ""


def find_variable_fault(name: str) -> str:
    if looks_like_key(name) or not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*|", name):
        return "this is not the name of a variable; the file names the variable and never holds the key itself"
    return ""


# The file


def make_entry(chosen: ServerChoice) -> str:
    """The entry of `[[backends]]`; settings that repeat the preset are commented out."""
    preset = chosen.facts
    comment = "everything before the operation, such as /chat/completions"
    models = chosen.models or preset.models
    example = next((model for model in models if not is_glob(model)), "NAME")
    if chosen.models:
        models_line = f"models = {to_toml([*models, *preset.models])}  # the first is the default"
    elif preset.models:
        models_line = f"# models = {to_toml(models)}  # names and globs of models that this server serves"
    else:
        models_line = f'# models = ["NAME"]  # without this line, request a model as {chosen.backend_name}/NAME'
    other_kinds = f"  # or {', '.join(chosen.kinds[1:])}" if chosen.kinds[1:] else ""
    lines = [
        "",
        f"# {preset.title}",
        "[[backends]]",
        f"preset = {to_toml(chosen.preset)}" if chosen.preset else None,
        f"name = {to_toml(chosen.name)}" if chosen.name else None,
        f"kind = {to_toml(chosen.kinds[0])}{other_kinds}" if chosen.kinds else None,
        _make_line("base_url", chosen.base_url, preset.base_url, comment),
        _make_line("api_key_env", chosen.key_env, preset.api_key_env, "the variable that holds the key"),
        models_line,
        f"# aliases = {{ fast = {to_toml(example)} }}  # names of your own",
        '# context_windows = { "*" = 131072 }  # in tokens',
    ]
    return "\n".join(line for line in lines if line is not None) + "\n"


def _make_line(key: str, value: str, default: str, comment: str) -> str | None:
    """A setting, commented out where it repeats the preset."""
    if not value and not default:
        return None
    mark = "" if value and value != default else "# "
    return f"{mark}{key} = {to_toml(value or default)}  # {comment}"
