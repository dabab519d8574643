"""`toolwire config`: shows every setting with its value and source, as TOML or JSON; keys are masked in both."""

import json as json_module
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import click

from toolwire.cli.options import (
    CommandGroup,
    config_option,
    json_option,
    mention_local_file,
    print_json,
    say,
    stop_on,
)
from toolwire.config.display import Setting, find_sources, mask
from toolwire.config.files import user_path
from toolwire.config.settings import SettingsError, load


@click.group(cls=CommandGroup, invoke_without_command=True)
@json_option
@config_option
@click.pass_context
def config(context: click.Context, json: bool, config: str | None) -> None:
    if context.invoked_subcommand is not None:
        context.obj = config
        return
    mention_local_file(context, config)
    with stop_on(SettingsError):
        settings = load(config)
        tables = find_sources(settings)
    if json:
        print_json({"file": settings.file or None, "settings": _convert(tables)})
        return
    print(f"# {settings.file}" if settings.file else f"# no settings file; toolwire init writes {user_path()}")
    for name, content in tables.items():
        for table in content if isinstance(content, list) else [content]:
            print(f"\n[[{name}]]" if isinstance(content, list) else f"\n[{name}]")
            rows: list[tuple[str, str]] = []
            for key, each in table.items():
                value = mask(each.value, key)
                rows.append((f"# {key}: not set" if value is None else f"{key} = {to_toml(value)}", each.source))
            width = min(max((len(assignment) for assignment, _ in rows), default=0), 48)
            for assignment, source in rows:
                print(f"{assignment:{width}}  # {source}")


@config.command()
@config_option
@click.pass_context
def path(context: click.Context, config: str | None) -> None:
    """Print the path of the settings file."""
    given = config or context.obj
    file = Path(given).absolute() if given else user_path()
    print(file)
    if not file.exists():
        say("there is no such file yet; toolwire init writes one")


def _convert(tables: Mapping[str, Any] | Sequence[Any]) -> Any:
    """The tables as JSON: `{TABLE: {KEY: {"value": …, "source": …}}}`."""
    if isinstance(tables, Sequence):
        return [_convert(each) for each in tables]
    return {
        key: {"value": mask(each.value, key), "source": each.source} if isinstance(each, Setting) else _convert(each)
        for key, each in tables.items()
    }


def to_toml(value: object) -> str:
    """A value as TOML."""
    if isinstance(value, dict):
        pairs: list[str] = []
        for key, each in cast("Mapping[str, object]", value).items():
            is_bare = key.replace("_", "").replace("-", "").isalnum() and key.isascii()
            pairs.append(f"{key if is_bare else json_module.dumps(key)} = {to_toml(each)}")
        return f"{{ {', '.join(pairs)} }}" if pairs else "{}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(to_toml(each) for each in cast('Sequence[object]', value))}]"
    return json_module.dumps(value, ensure_ascii=False)
