"""The text of a new settings file, with a comment for everything that one may want to change."""

from collections.abc import Sequence

import msgspec

from toolwire.cli.in_force import toml
from toolwire.config.presets import PRESETS
from toolwire.config.settings import Server

_HEAD = f"""\
# Settings of Toolwire.
#   toolwire config   shows what is in force, and every key that may stand here
#   toolwire doctor   says what is wrong
#   toolwire models   lists the models

[server]
# port = {Server().port}                 # where `toolwire serve` listens
# host = "{Server().host}"          # another address needs a [[keys]] entry below

# [[keys]]                    # who may ask; without any: every program on this machine, and nobody else
# name = "me"
# key_env = "TOOLWIRE_KEY"    # the variable that holds the key
"""

_NO_BACKENDS = """\

# Without a [[backends]] entry there is the demo model, OpenAI's models if OPENAI_API_KEY is set, Anthropic's if
# ANTHROPIC_API_KEY is, and a local Codex if it has a login.
# [[backends]]
# preset = "deepseek"         # one of: {presets}
"""


class Chosen(msgspec.Struct, frozen=True):
    """One server, and what is not as its preset says."""

    preset: str
    base_url: str = ""
    key_env: str = ""
    models: tuple[str, ...] = ()


def text_of(chosen: Sequence[Chosen]) -> str:
    """A settings file with these servers."""
    if not chosen:
        return _HEAD + _NO_BACKENDS.format(presets=", ".join(PRESETS))
    return _HEAD + "".join(_entry(each) for each in chosen)


def _entry(chosen: Chosen) -> str:
    preset = PRESETS[chosen.preset]
    models = chosen.models or preset.models
    lines = [
        "",
        f"# {preset.title}",
        "[[backends]]",
        f"preset = {toml(chosen.preset)}",
        _line(
            "base_url", chosen.base_url, preset.base_url, "everything before the operation, such as /chat/completions"
        ),
        _line("api_key_env", chosen.key_env, preset.api_key_env, "the variable that holds the key"),
        _models_line(chosen.models, preset.models, chosen.preset),
        f"# aliases = {{ fast = {toml(_example(models))} }}  # names of your own",
        '# context_windows = { "*" = 131072 }  # tokens that its models take',
    ]
    return "\n".join(line for line in lines if line is not None) + "\n"


def _line(key: str, value: str, usual: str, comment: str) -> str | None:
    """A setting, commented out where it is what the preset says anyway."""
    if not value and not usual:
        return None
    mark = "" if value and value != usual else "# "
    return f"{mark}{key} = {toml(value or usual)}  # {comment}"


def _models_line(models: Sequence[str], usual: Sequence[str], name: str) -> str:
    if models:
        return f"models = {toml([*models, *usual])}  # the first is the one to begin with"
    if usual:
        return f"# models = {toml(list(usual))}  # names and globs that go to this server"
    return f'# models = ["NAME"]  # without it they are asked for as {name}/NAME'


def _example(models: Sequence[str]) -> str:
    return next((model for model in models if not any(mark in model for mark in "*?[")), "NAME")
