"""`toolwire models`: lists the model names that clients may request, by backend."""

import asyncio
from fnmatch import fnmatchcase

import click
import msgspec

from toolwire.backends.decoder import UNREADABLE
from toolwire.cli.clients import find_key
from toolwire.cli.options import config_option, json_option, print_json, say, stop, stop_on
from toolwire.config.decode import did_you_mean, join_reasons
from toolwire.config.settings import Settings, SettingsError, is_glob, load
from toolwire.core.display import clean, redact_url
from toolwire.turns.route import Route
from toolwire.turns.routes import Router, read_model_names
from toolwire.upstream.http import HttpSession
from toolwire.upstream.reply import Broken

MODEL_LIST_TIMEOUT = 10.0
"""Seconds for the list of one server."""


class ModelList(msgspec.Struct, frozen=True):
    """The models of one backend."""

    name: str
    kind: str
    base_url: str
    models: tuple[str, ...]
    """The names under which the gateway serves them."""
    aliases: dict[str, str]
    globs: tuple[str, ...]
    error: str = ""
    """Why its server did not list its models."""


@click.command()
@click.argument("backend", default="", help="Only this backend, with all models of its server.")
@json_option
@config_option
def models(backend: str, json: bool, config: str | None) -> None:
    with stop_on(SettingsError):
        settings = load(config)
    names = [each.name for each in settings.backends]
    if backend and backend not in names:
        hint = did_you_mean(backend, names) or f"there are {', '.join(names)}"
        raise stop(join_reasons(f"models: there is no backend {backend!r}", hint))
    lists = asyncio.run(list_models(settings, backend))
    if json:
        print_json({"backends": lists})
    else:
        for each in lists:
            lines = [*each.models, *(f"{alias} = {model}" for alias, model in each.aliases.items())]
            lines = lines or [", ".join(each.globs) if each.globs else f"only as {each.name}/MODEL"]
            print(clean(f"{each.name} ({', '.join(filter(None, (each.kind, each.base_url)))})"))
            for line in lines:
                print(clean(f"  {line}"))
        for each in lists:
            if each.error:
                say(f"{each.name}: {each.error}")
    raise click.exceptions.Exit(1 if backend and lists[0].error else 0)


async def list_models(settings: Settings, only: str = "") -> list[ModelList]:
    """The models of every backend; with `only`, all models of that backend's server, whether configured or not."""
    async with HttpSession(settings.timeouts) as session:
        routes = [route for route in Router(settings, session).routes if only in ("", route.backend.name)]
        return await asyncio.gather(*(_list_backend(route, everything=bool(only)) for route in routes))


async def _list_backend(route: Route, *, everything: bool) -> ModelList:
    backend = route.backend
    globs = tuple(name for name in backend.models if is_glob(name))
    found, error = (), route.obstacle()
    if error:
        error = f"unavailable: {error}"
    elif (globs or everything) and route.list_models is not None and not backend.auth:  # with a login the list differs
        try:
            async with asyncio.timeout(MODEL_LIST_TIMEOUT):
                found = read_model_names(await route.list_models(find_key(backend)))
        except Broken as broken:
            error = broken.failure.message
        except (*UNREADABLE, TimeoutError):
            error = "Its list of models cannot be read."
    names = list(backend.literal_models)
    for name in found:
        if any(fnmatchcase(name, glob) for glob in globs):
            names.append(name)
        elif everything and name not in names:
            names.append(f"{backend.name}/{name}")
    url = redact_url(backend.base_url)
    return ModelList(backend.name, backend.kind, url, tuple(dict.fromkeys(names)), backend.aliases, globs, error)
