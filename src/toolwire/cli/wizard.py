"""The questions of `toolwire init`. Each has a default, which also counts when nobody is there to answer."""

import asyncio
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec

from toolwire.cli.listing import ask
from toolwire.cli.new_file import Chosen, text_of
from toolwire.config.decode import looks_like_key
from toolwire.config.presets import PRESETS, missing_preset, with_preset
from toolwire.config.settings import Backend, Settings, address_fault
from toolwire.memory.private import make_folders, open_private

NONE = "none"
MOST = 20
"""Models of a server on this machine that are offered."""


class Declined(Exception):
    """One line that says why no file was written."""


class Given(msgspec.Struct, frozen=True):
    """What the command line says."""

    presets: tuple[str, ...] = ()
    models: tuple[str, ...] = ()
    base_url: str = ""
    key_env: str = ""


def init(path: Path, given: Given, *, asks: bool, overwrite: bool) -> None:
    """Ask, write the file, and say what to do next."""
    _check(given)
    if not asks:
        _check_whole(given)
    questions = Questions(asks=asks)
    if os.path.lexists(path) and not overwrite and not questions.confirmed(f"{path} is there already. Replace it?"):
        raise Declined(f"{path} is there already, and stays as it is; --overwrite replaces it")
    names = given.presets or (_servers(questions) if asks else ())
    chosen = [_details(name, given, questions) for name in names]
    try:
        make_folders(path.parent)
        with open_private(path, "w") as file:
            file.write(text_of(chosen).encode())
    except OSError as error:
        raise Declined(f"{path}: {error.strerror}") from None
    _say_what_is_next(path, chosen)


def _check(given: Given) -> None:
    for name in given.presets:
        if name not in PRESETS:
            raise Declined(f"--preset: {missing_preset(name)}")
    if (given.models or given.base_url or given.key_env) and len(given.presets) != 1:
        raise Declined("--model, --base-url and --key-env go with exactly one --preset")
    if given.base_url and _url_fault(given.base_url):
        raise Declined(f"--base-url: {_url_fault(given.base_url)}")
    if given.key_env and _variable_fault(given.key_env):
        raise Declined(f"--key-env: {_variable_fault(given.key_env)}")


def _check_whole(given: Given) -> None:
    for name in given.presets:
        if PRESETS[name].address and not given.base_url:
            raise Declined(f"--base-url: the preset {name} needs yours: {PRESETS[name].address}")


def _no_fault(answer: str) -> str:
    return ""


class Questions:
    """Asks on stdout and reads answers from stdin, which may be a pipe; at its end every answer is the default."""

    def __init__(self, *, asks: bool) -> None:
        self._asks = asks

    def asked(self, question: str, default: str, fault_of: Callable[[str], str] = _no_fault) -> str:
        """The first answer that has no fault."""
        while self._asks:
            print(f"{question} [{default}]: " if default else f"{question}: ", end="", flush=True)
            line = sys.stdin.readline() if sys.stdin is not None else ""
            if sys.stdin is None or not sys.stdin.isatty():  # a terminal has ended the line itself
                print()
            self._asks = bool(line)
            answer = line.strip() or default
            fault = fault_of(answer)
            if not fault:
                return answer
            print(f"  {fault}")
        if fault_of(default):
            raise Declined(f"{question}: {fault_of(default)}")
        return default

    def confirmed(self, question: str) -> bool:
        return self.asked(f"{question} (y/n)", "n").lower() in ("y", "yes")


def _servers(questions: Questions) -> tuple[str, ...]:
    print("Which servers have the models that you want to use?\n")
    found = [name for name, each in PRESETS.items() if each.api_key_env and os.environ.get(each.api_key_env)]
    for number, (name, preset) in enumerate(PRESETS.items(), 1):
        print(f"  {number:2}  {name:11} {preset.title}{f' ({preset.api_key_env} is set)' if name in found else ''}")
    print("\nThe demo model is always there and needs none of them.")
    answer = questions.asked("Numbers or names, with commas", ", ".join(found) or NONE, _servers_fault)
    return _named(answer)


def _named(answer: str) -> tuple[str, ...]:
    """The presets of an answer, by number or name; a name that is none stays as it is."""
    words = [word.strip() for word in answer.split(",") if word.strip() and word.strip() != NONE]
    names = [*PRESETS]
    return tuple(
        dict.fromkeys(
            names[int(word) - 1] if word.isdecimal() and 1 <= int(word) <= len(names) else word for word in words
        )
    )


def _servers_fault(answer: str) -> str:
    return next((missing_preset(name) for name in _named(answer) if name not in PRESETS), "")


def _details(name: str, given: Given, questions: Questions) -> Chosen:
    """Address, key and models of one server."""
    preset = PRESETS[name]
    if not given.presets:
        print(f"\n{preset.title}")
    url, variable, models = given.base_url, given.key_env, given.models
    if not url and (preset.address or not preset.api_key_env):
        url = questions.asked("Its address", preset.base_url, lambda answer: _url_fault(answer, preset.address))
    if not variable and preset.api_key_env:
        variable = questions.asked("The variable that holds its key", preset.api_key_env, _variable_fault)
    if not models:
        models = _models(name, url, questions)
    return Chosen(name, url, variable, models)


def _models(name: str, url: str, questions: Questions) -> tuple[str, ...]:
    preset = PRESETS[name]
    listed = _on_this_machine(name, url) if not preset.api_key_env else ()
    without = f"go there by {', '.join(preset.models)}" if preset.models else f"are asked for as {name}/MODEL"
    question = f"Models by name, with commas; the first is the one to begin with (all others {without})"
    answer = questions.asked(question, ", ".join(listed) or NONE)
    return tuple(word.strip() for word in answer.split(",") if word.strip() not in ("", NONE))


def _on_this_machine(name: str, url: str) -> tuple[str, ...]:
    """The models that a server without a key has, if it runs."""
    backend = msgspec.convert(with_preset({"base_url": url or PRESETS[name].base_url}, name), Backend)
    [listed] = asyncio.run(ask(Settings(backends=(backend,)), name))
    return tuple(model.removeprefix(f"{name}/") for model in listed.models[:MOST])


def _url_fault(url: str, form: str = "") -> str:
    if form and (not url or url == form):
        return f"it has the form {form}"
    return f"{url!r} is not an address: {address_fault(url)}" if address_fault(url) else ""


def _variable_fault(name: str) -> str:
    if looks_like_key(name) or not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*|", name):
        return "that is no name of a variable; the key itself is not written anywhere, only where it is"
    return ""


def _say_what_is_next(path: Path, chosen: list[Chosen]) -> None:
    print(f"\nWritten: {path}")
    variables = [each.key_env or PRESETS[each.preset].api_key_env for each in chosen]
    missing = [name for name in dict.fromkeys(variables) if name and not os.environ.get(name)]
    steps = [(f"export {name}=…", "the key itself, in every shell that starts the gateway") for name in missing]
    option = "" if any(each.models for each in chosen) or not chosen else " --model NAME"
    steps += [
        ("toolwire doctor", "is everything as it should be?"),
        (f"toolwire launch claude{option}", "Claude Code on your models; or: toolwire launch codex"),
        ("toolwire serve", "the gateway alone, for every other program"),
    ]
    width = max(len(step) for step, _ in steps)
    print("Next:")
    for step, why in steps:
        print(f"  {step:{width}}  # {why}")
