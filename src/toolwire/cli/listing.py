"""Asks every backend for its models."""

import asyncio
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase

import msgspec

from toolwire.cli.choice import own_key
from toolwire.config.settings import Settings, is_glob
from toolwire.core.terminal import clean
from toolwire.core.urls import bare_url
from toolwire.turns.routes import Route, Router, names_in
from toolwire.upstream.http import make_session
from toolwire.upstream.reply import Broken

PATIENCE = 10.0
"""Seconds for the list of one server."""


class Listing(msgspec.Struct, frozen=True):
    """The models of one backend."""

    name: str
    kind: str
    base_url: str
    models: tuple[str, ...]
    """Names to ask the gateway for."""
    aliases: dict[str, str]
    globs: tuple[str, ...]
    error: str = ""
    """Why its server could not be asked."""


async def ask(settings: Settings, only: str = "") -> list[Listing]:
    """The models of every backend, or all that the server of one has, whether it has a name of its own here or not."""
    async with make_session(settings.timeouts) as session:
        routes = [route for route in Router(settings, session).routes if only in ("", route.backend.name)]
        return await asyncio.gather(*(_listing(route, everything=bool(only)) for route in routes))


async def _listing(route: Route, *, everything: bool) -> Listing:
    backend = route.backend
    globs = tuple(name for name in backend.models if is_glob(name))
    found, error = await _names(route) if globs or everything else ((), "")
    names = list(backend.literal_models)
    for name in found:
        if any(fnmatchcase(name, glob) for glob in globs):
            names.append(name)
        elif everything and name not in names:
            names.append(f"{backend.name}/{name}")
    url = bare_url(backend.base_url)
    return Listing(backend.name, backend.kind, url, tuple(dict.fromkeys(names)), backend.aliases, globs, error)


async def _names(route: Route) -> tuple[tuple[str, ...], str]:
    """What its server lists, or why it does not."""
    if route.list_models is None or route.backend.auth:
        return (), ""  # behind a login the list is another one
    try:
        async with asyncio.timeout(PATIENCE):
            return names_in(await route.list_models(own_key(route.backend))), ""
    except Broken as error:
        return (), error.failure.message
    except (msgspec.DecodeError, TimeoutError):
        return (), "Its list of models cannot be read."


def lines(listed: Sequence[Listing]) -> Iterator[str]:
    """For people: a line for each backend, and one for each of its names."""
    for each in listed:
        yield clean(f"{each.name} ({', '.join(part for part in (each.kind, each.base_url) if part)})")
        for name in each.models:
            yield clean(f"  {name}")
        for alias, model in each.aliases.items():
            yield clean(f"  {alias} = {model}")
        if not each.models and not each.aliases:
            yield clean(f"  {', '.join(each.globs)}" if each.globs else f"  only as {each.name}/MODEL")
