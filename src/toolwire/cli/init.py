"""`toolwire init`: writes a settings file after a few questions. Every question has a default."""

import os
from pathlib import Path

import click

from toolwire.cli.options import stop_on
from toolwire.cli.questions import Declined, Questions
from toolwire.cli.servers import (
    NONE,
    OTHER,
    ServerChoice,
    choose_servers,
    find_url_fault,
    find_variable_fault,
    make_entry,
    split_list,
)
from toolwire.config.files import user_path
from toolwire.config.presets import PRESETS, explain_preset
from toolwire.config.settings import Server
from toolwire.memory.private_files import make_folders, open_private

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
# if ANTHROPIC_API_KEY is set, Google's if GEMINI_API_KEY is set, and a local Codex if it is logged in.
# [[backends]]
# preset = "deepseek"         # one of: {", ".join(PRESETS)}
"""


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
@click.option("--url", "-u", help="The address of any other server; its API is detected.")
@click.option("--model", "-m", multiple=True, help="A model of that server; may be repeated.")
@click.option("--base-url", default="", help="The address of that server, if it differs from the preset.")
@click.option("--key-env", default="", help="The variable that holds its key, if it differs from the preset.")
@click.option("--yes", "-y", is_flag=True, help="Ask no questions.")
@click.option("--overwrite", is_flag=True, help="Replace an existing file.")
@click.option("--config", "-c", help="The file to write; by default ~/.config/toolwire/toolwire.toml.")
def init(
    preset: tuple[str, ...],
    url: str | None,
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
        _check_options(preset, url, model, base_url, key_env)
        for name in preset:
            if yes and PRESETS[name].address and not base_url:
                raise Declined(f"--base-url: the preset {name} needs an address of the form {PRESETS[name].address}")
        if os.path.lexists(path) and not overwrite and not questions.confirm(f"{path} already exists. Replace it?"):
            raise Declined(f"{path} already exists and was not changed; --overwrite replaces it")
        given = ServerChoice("", base_url, key_env, model)
        if preset or url is not None or yes:
            chosen = choose_servers((*preset, *(() if url is None else (url,))), given, questions)
        else:
            chosen = choose_servers(_ask_servers(questions), given, questions, with_titles=True)
        try:
            make_folders(path.parent)
            with open_private(path, "w") as file:
                file.write((_HEAD + ("".join(map(make_entry, chosen)) or _NO_BACKENDS)).encode())
        except OSError as error:
            raise Declined(f"{path}: {error.strerror}") from None
    print(f"\nWrote {path}")
    variables = [each.key_env or each.facts.api_key_env for each in chosen]
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


def _check_options(
    preset: tuple[str, ...], url: str | None, model: tuple[str, ...], base_url: str, key_env: str
) -> None:
    """Raise `Declined` for options that do not go together, or have a fault."""
    if unknown := next((name for name in preset if name not in PRESETS), ""):
        raise Declined(f"--preset: {explain_preset(unknown)}")
    if (model or base_url or key_env) and len(preset) + (url is not None) != 1:
        raise Declined("--model, --base-url and --key-env go with exactly one --preset or --url")
    if url and base_url:
        raise Declined("--base-url needs --preset; --url is already an address")
    if base_url and (fault := find_url_fault(base_url)):
        raise Declined(f"--base-url: {fault}")
    if key_env and (fault := find_variable_fault(key_env)):
        raise Declined(f"--key-env: {fault}")


def _ask_servers(questions: Questions) -> tuple[str, ...]:
    print("Which servers have the models that you want to use?\n")
    found = [name for name, each in PRESETS.items() if each.api_key_env and os.environ.get(each.api_key_env)]
    for number, (name, preset) in enumerate(PRESETS.items(), 1):
        print(f"  {number:2}  {name:11} {preset.title}{f' ({preset.api_key_env} is set)' if name in found else ''}")
    print(f"  {len(PRESETS) + 1:2}  {OTHER:11} Any other server; you can also type its address here")
    print("\nThe demo model is always available and needs none of them.")

    def find_fault(answer: str) -> str:
        words = (word for word in _split_servers(answer) if word not in PRESETS and word != OTHER)
        return next((explain_preset(word) for word in words if "://" not in word), "")

    question = "Numbers, names or addresses, with commas"
    return _split_servers(questions.ask(question, ", ".join(found) or NONE, find_fault))


def _split_servers(answer: str) -> tuple[str, ...]:
    """The servers of an answer: presets by number or name, `OTHER`, and addresses. An unknown name is kept."""
    names = [*PRESETS, OTHER]
    found = (
        names[int(word) - 1] if word.isdecimal() and 1 <= int(word) <= len(names) else word
        for word in split_list(answer)
    )
    return tuple(dict.fromkeys(found))
