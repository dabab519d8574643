"""`toolwire init`: writes a settings file after a few questions. Every question has a default."""

import asyncio
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path

import click
import msgspec

from toolwire.cli.config import to_toml
from toolwire.cli.options import stop_on
from toolwire.config.decode import looks_like_key
from toolwire.config.files import user_path
from toolwire.config.presets import PRESETS, explain_preset, with_preset
from toolwire.config.settings import Backend, Server, Settings, find_address_fault, is_glob
from toolwire.memory.private_files import make_folders, open_private

NONE = "none"
MAX_MODELS_OFFERED = 20
"""Models of a server on this machine that are offered as a default."""

_HEAD = f"""\
# Settings of Toolwire.
#   toolwire config   shows what is in force, and every key that may appear here
#   toolwire doctor   says what is wrong
#   toolwire models   lists the models

[server]
# port = {Server().port}                 # where `toolwire serve` listens
# host = "{Server().host}"          # another address needs a [[keys]] entry below

# [[keys]]                    # who may use it; without keys: every program on this machine, and no other machine
# name = "me"
# key_env = "TOOLWIRE_KEY"    # the variable that holds the key
"""

_NO_BACKENDS = f"""\

# Without a [[backends]] entry the gateway serves the demo model, OpenAI's models if OPENAI_API_KEY is set, Anthropic's
# if ANTHROPIC_API_KEY is set, and a local Codex if it is logged in.
# [[backends]]
# preset = "deepseek"         # one of: {", ".join(PRESETS)}
"""


class Declined(Exception):
    """No file was written; the message is one line for the user."""


class ServerChoice(msgspec.Struct, frozen=True):
    """One server, and its differences from the preset."""

    preset: str
    base_url: str = ""
    key_env: str = ""
    models: tuple[str, ...] = ()


def complete_preset(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    """Complete the names of presets."""
    return [name for name in PRESETS if name.startswith(incomplete)]


@click.command()
@click.option(
    "--preset",
    multiple=True,
    shell_complete=complete_preset,
    help="A server, such as deepseek or ollama; may be repeated.",
)
@click.option("--model", "-m", multiple=True, help="A model of that server; may be repeated.")
@click.option("--base-url", default="", help="The address of that server, if it differs from the preset.")
@click.option("--key-env", default="", help="The variable that holds its key, if it differs from the preset.")
@click.option("--yes", "-y", is_flag=True, help="Ask no questions.")
@click.option("--overwrite", is_flag=True, help="Replace an existing file.")
@click.option("--config", "-c", help="The file to write; by default ~/.config/toolwire/toolwire.toml.")
def init(
    preset: tuple[str, ...],
    model: tuple[str, ...],
    base_url: str,
    key_env: str,
    yes: bool,
    overwrite: bool,
    config: str | None,
) -> None:
    path = Path(config).absolute() if config else user_path()
    questions = Questions(asks=not yes)
    with stop_on(Declined):
        if unknown := next((name for name in preset if name not in PRESETS), ""):
            raise Declined(f"--preset: {explain_preset(unknown)}")
        if (model or base_url or key_env) and len(preset) != 1:
            raise Declined("--model, --base-url and --key-env go with exactly one --preset")
        if base_url and (fault := _find_url_fault(base_url)):
            raise Declined(f"--base-url: {fault}")
        if key_env and (fault := _find_variable_fault(key_env)):
            raise Declined(f"--key-env: {fault}")
        for name in preset:
            if yes and PRESETS[name].address and not base_url:
                raise Declined(f"--base-url: the preset {name} needs an address of the form {PRESETS[name].address}")
        if os.path.lexists(path) and not overwrite and not questions.confirm(f"{path} already exists. Replace it?"):
            raise Declined(f"{path} already exists and was not changed; --overwrite replaces it")
        names = preset if preset or yes else _ask_servers(questions)
        chosen: list[ServerChoice] = []
        for name in names:
            if not preset:
                print(f"\n{PRESETS[name].title}")
            chosen.append(_ask_details(ServerChoice(name, base_url, key_env, model), questions))
        try:
            make_folders(path.parent)
            with open_private(path, "w") as file:
                file.write((_HEAD + ("".join(map(_make_entry, chosen)) or _NO_BACKENDS)).encode())
        except OSError as error:
            raise Declined(f"{path}: {error.strerror}") from None
    print(f"\nWritten: {path}")
    variables = [each.key_env or PRESETS[each.preset].api_key_env for each in chosen]
    missing = [name for name in dict.fromkeys(variables) if name and not os.environ.get(name)]
    option = "" if any(each.models for each in chosen) or not chosen else " --model NAME"
    steps = [
        *((f"export {name}=…", "the key itself, in every shell that starts the gateway") for name in missing),
        ("toolwire doctor", "is everything as it should be?"),
        (f"toolwire launch claude{option}", "Claude Code on your models; or: toolwire launch codex"),
        ("toolwire serve", "the gateway alone, for every other program"),
    ]
    width = max(len(step) for step, _ in steps)
    print("Next:")
    for step, why in steps:
        print(f"  {step:{width}}  # {why}")


# Questions


class Questions:
    """Asks on stdout and reads answers from stdin, which may be a pipe. At its end the defaults are used."""

    def __init__(self, *, asks: bool) -> None:
        self._asks = asks

    def ask(self, question: str, default: str, find_fault: Callable[[str], str] = lambda _: "") -> str:
        """The first answer without a fault."""
        while self._asks:
            print(f"{question} [{default}]: " if default else f"{question}: ", end="", flush=True)
            line = sys.stdin.readline() if sys.stdin is not None else ""
            if sys.stdin is None or not sys.stdin.isatty():  # a terminal has ended the line itself
                print()
            self._asks = bool(line)
            answer = line.strip() or default
            fault = find_fault(answer)
            if not fault:
                return answer
            print(f"  {fault}")
        if find_fault(default):
            raise Declined(f"{question}: {find_fault(default)}")
        return default

    def confirm(self, question: str) -> bool:
        return self.ask(f"{question} (y/n)", "n").lower() in ("y", "yes")


def _ask_servers(questions: Questions) -> tuple[str, ...]:
    print("Which servers have the models that you want to use?\n")
    found = [name for name, each in PRESETS.items() if each.api_key_env and os.environ.get(each.api_key_env)]
    for number, (name, preset) in enumerate(PRESETS.items(), 1):
        print(f"  {number:2}  {name:11} {preset.title}{f' ({preset.api_key_env} is set)' if name in found else ''}")
    print("\nThe demo model is always available and needs none of them.")

    def find_fault(answer: str) -> str:
        return next((explain_preset(name) for name in _split_presets(answer) if name not in PRESETS), "")

    return _split_presets(questions.ask("Numbers or names, with commas", ", ".join(found) or NONE, find_fault))


def _split_presets(answer: str) -> tuple[str, ...]:
    """The presets of an answer, by number or name. An unknown name is kept."""
    names = [*PRESETS]
    found = (
        names[int(word) - 1] if word.isdecimal() and 1 <= int(word) <= len(names) else word
        for word in _split_list(answer)
    )
    return tuple(dict.fromkeys(found))


def _split_list(answer: str) -> tuple[str, ...]:
    return tuple(word.strip() for word in answer.split(",") if word.strip() not in ("", NONE))


def _ask_details(given: ServerChoice, questions: Questions) -> ServerChoice:
    """Ask for the address, key and models of one server, unless they are given."""
    name, preset = given.preset, PRESETS[given.preset]
    url, variable, models = given.base_url, given.key_env, given.models
    if not url and (preset.address or not preset.api_key_env):
        url = questions.ask("Its address", preset.base_url, lambda answer: _find_url_fault(answer, preset.address))
    if not variable and preset.api_key_env:
        variable = questions.ask("The variable that holds its key", preset.api_key_env, _find_variable_fault)
    if not models:
        offered: tuple[str, ...] = ()
        if not preset.api_key_env:  # a server on this machine, which may be running
            from toolwire.cli.models import list_models

            backend = msgspec.convert(with_preset({"base_url": url or preset.base_url}, name), Backend)
            [listed] = asyncio.run(list_models(Settings(backends=(backend,)), name))
            offered = tuple(model.removeprefix(f"{name}/") for model in listed.models[:MAX_MODELS_OFFERED])
        others = f"are matched by {', '.join(preset.models)}" if preset.models else f"are requested as {name}/MODEL"
        question = f"Models by name, with commas; the first is the default (all others {others})"
        models = _split_list(questions.ask(question, ", ".join(offered) or NONE))
    return ServerChoice(name, url, variable, models)


def _find_url_fault(url: str, form: str = "") -> str:
    if form and (not url or url == form):
        return f"it has the form {form}"
    return f"{url!r} is not an address: {find_address_fault(url)}" if find_address_fault(url) else ""


def _find_variable_fault(name: str) -> str:
    if looks_like_key(name) or not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*|", name):
        return "this is not the name of a variable; the file names the variable and never holds the key itself"
    return ""


# The file


def _make_entry(chosen: ServerChoice) -> str:
    preset = PRESETS[chosen.preset]
    comment = "everything before the operation, such as /chat/completions"
    models = chosen.models or preset.models
    example = next((model for model in models if not is_glob(model)), "NAME")
    if chosen.models:
        models_line = f"models = {to_toml([*models, *preset.models])}  # the first is the default"
    elif preset.models:
        models_line = f"# models = {to_toml(models)}  # names and globs of models that this server serves"
    else:
        models_line = f'# models = ["NAME"]  # without this line, request a model as {chosen.preset}/NAME'
    lines = [
        "",
        f"# {preset.title}",
        "[[backends]]",
        f"preset = {to_toml(chosen.preset)}",
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
