"""`toolwire keys`: issues, lists, rotates and revokes keys in the store of the settings."""

import asyncio
import re
import time
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime
from typing import Any, TypeVar

import click
import msgspec

from toolwire.cli.options import CommandGroup, config_option, json_option, print_json, say, stop, stop_on
from toolwire.cli.store import load_settings, open_store
from toolwire.config.stores import prepare_store
from toolwire.core.errors import BadRequest
from toolwire.gateway.key_admin import KeyAdmin, KeyUpdate, KeyView, NewKey
from toolwire.memory.store import KeyLimits

T = TypeVar("T")
S = TypeVar("S", NewKey, KeyUpdate)

_UNITS = {"m": 60, "h": 3600, "d": 86_400}
LIMITS = KeyLimits.__struct_fields__
_HEADINGS = ("NAME", "STATUS", "TEAM", "MODELS", "BACKENDS", "LABELS", "LIMITS", "CREATED", "EXPIRES")


class Expiry(click.ParamType[int]):
    """A time from now on, or a day in UTC, as seconds since 1970."""

    name = "TIME"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Read the option."""
        if value == "never":
            return 0
        if found := re.fullmatch(r"([1-9]\d{0,5})([mhd])", str(value)):
            return int(time.time()) + int(found[1]) * _UNITS[found[2]]
        try:
            return int(datetime.strptime(str(value), "%Y-%m-%d").replace(tzinfo=UTC).timestamp())
        except ValueError:
            self.fail(f"{value!r} is no time such as 90d, 12h or 30m, no day such as 2027-01-31, and not never")


expires_option = click.option(
    "--expires", "expires_at", type=Expiry(), help="When it expires: 90d, 12h, 30m, a day such as 2027-01-31, or never."
)


def field_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options for the fields of a key, under the fields' names."""
    for option in (
        expires_option,
        click.option("--limit", "limits", multiple=True, metavar="NAME=NUMBER", help=f"One of {', '.join(LIMITS)}."),
        click.option("--label", "labels", multiple=True, metavar="NAME=VALUE", help="A label; may be repeated."),
        click.option("--backend", "-b", "backends", multiple=True, help="A backend to allow; may be repeated."),
        click.option("--model", "-m", "models", multiple=True, help="A model or glob to allow; may be repeated."),
        click.option("--team", help="The team that it belongs to."),
    ):
        command = option(command)
    return command


@click.group(cls=CommandGroup)
def keys() -> None:
    pass


name_argument = click.argument("name", metavar="NAME", help="The name of the key, which is the tenant.")


@keys.command()
@name_argument
@field_options
@json_option
@config_option
def create(name: str, json: bool, config: str | None, **fields: Any) -> None:
    """Issue a key. It is shown once."""
    new = _read_fields({"name": name, **fields}, NewKey)
    _print_secret(_run(config, lambda admin: admin.create(new)), json=json)


@keys.command()
@name_argument
@field_options
@json_option
@config_option
def update(name: str, json: bool, config: str | None, **fields: Any) -> None:
    """Change a key. Each option replaces what the key had of that kind; what is not given stays."""
    changes = _read_fields(fields, KeyUpdate)
    _print_key(_run(config, lambda admin: admin.update(name, changes)), json=json)


def _read_fields(options: dict[str, Any], type: type[S]) -> S:
    """The fields that are given as options."""
    fields = {name: value for name, value in options.items() if value is not None and value != ()}
    for field, option in (("labels", "--label"), ("limits", "--limit")):
        pairs: Sequence[str] = fields.get(field, ())
        if unnamed := [pair for pair in pairs if "=" not in pair]:
            raise stop(f"{option}: {unnamed[0]!r} has no value; write NAME=VALUE")
        if pairs:
            fields[field] = dict(pair.split("=", 1) for pair in pairs)
    with stop_on(msgspec.ValidationError):
        return msgspec.convert(fields, type, strict=False)


@keys.command("list")
@json_option
@config_option
def list_(json: bool, config: str | None) -> None:
    """List all issued keys, also those that are revoked or have expired."""
    found = _run(config, lambda admin: admin.list())
    if json:
        print_json({"keys": found})
        return
    rows = [_HEADINGS, *map(_make_row, found)] if found else []
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
    if not found:
        print("There are no issued keys yet; toolwire keys create NAME issues one.")


@keys.command()
@name_argument
@json_option
@config_option
def show(name: str, json: bool, config: str | None) -> None:
    """Show a key without its secret."""
    _print_key(_run(config, lambda admin: admin.find(name)), json=json)


@keys.command()
@name_argument
@expires_option
@json_option
@config_option
def rotate(name: str, expires_at: int | None, json: bool, config: str | None) -> None:
    """Replace the secret of a key, which is shown once. The previous one is refused within a second."""
    _print_secret(_run(config, lambda admin: admin.rotate(name, expires_at)), json=json)


@keys.command()
@name_argument
@json_option
@config_option
def revoke(name: str, json: bool, config: str | None) -> None:
    """End a key for good, also in turns that run. Its name cannot be used again."""
    _print_key(_run(config, lambda admin: admin.revoke(name)), json=json)


def _run(config: str | None, work: Callable[[KeyAdmin], Awaitable[T]]) -> T:
    """Do this with the keys of the settings' store."""
    with load_settings(config, BadRequest) as settings:
        if not settings.access.issued_keys:
            say("the gateway accepts issued keys only with issued_keys = true in [access]")
        if not prepare_store(settings, say).outlives_process:
            raise stop("store.url: a store in memory belongs to its gateway; use the admin API")

        async def run() -> T:
            async with open_store(settings) as store:
                return await work(KeyAdmin(store, settings))

        return asyncio.run(run())


def _print_secret(key: KeyView, *, json: bool) -> None:
    """Print a key with its secret, alone on stdout."""
    if json:
        print_json(key)
        return
    say(f"the key of {key.name}, which cannot be shown again:")
    print(key.key)


def _print_key(key: KeyView, *, json: bool) -> None:
    if json:
        print_json(key)
        return
    for heading, cell in zip(_HEADINGS, _make_row(key), strict=True):
        print(f"{heading.lower():14}{cell}")


def _make_row(key: KeyView) -> Sequence[str]:
    labels = " ".join(f"{name}={value}" for name, value in key.labels.items())
    access = (" ".join(texts) or "all" for texts in (key.models, key.backends))
    limits = " ".join(f"{name}={most}" for name, most in key.limits.items())
    expires = _show_time(key.expires_at) if key.expires_at else "never"
    return (
        key.name,
        key.status,
        key.team or "-",
        *access,
        labels or "-",
        limits or "none",
        _show_time(key.created_at),
        expires,
    )


def _show_time(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M")
