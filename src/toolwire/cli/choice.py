"""Which model a program gets, and with which key it asks."""

import os
from urllib.parse import urlsplit

import msgspec

from toolwire.cli.programs import OWN_MODELS, Client, ClientSetup, client_setup
from toolwire.cli.reach import Access
from toolwire.config.decode import did_you_mean, sentence
from toolwire.config.presets import PRESETS
from toolwire.config.settings import DEMO, Backend, Settings, SettingsError

_NOT_REAL = ("demo", "replay")


def check_model(settings: Settings, model: str) -> None:
    """Raise a `SettingsError` with the nearest names if no backend serves a model."""
    if not settings.serving(model):
        message = f"--model: there is no model {model!r} here"
        raise SettingsError(
            sentence(message, did_you_mean(model, settings.model_names) or "toolwire models lists them")
        )


def default_model(settings: Settings, client: Client) -> str:
    """The first model that the settings name, or the demo model; nothing if the client's own choice is served.

    Globs name no model. Where there is nothing else, a `SettingsError` says so.
    """
    real = [backend for backend in settings.backends if backend.kind not in _NOT_REAL]
    named = [name for backend in real for name in (*backend.literal_models, *backend.aliases)]
    if named:
        return named[0]
    if any(backend.serves(OWN_MODELS[client]) for backend in real):
        return ""
    globs = [f"{backend.name} serves {', '.join(backend.models)}" for backend in real if backend.models]
    if globs:
        raise SettingsError(f"say with --model which model: {'; '.join(globs)}; toolwire models lists them")
    return DEMO.models[0]


def client_setup_for(settings: Settings, client: Client, model: str, reached: Access) -> ClientSetup:
    """What a client is told, with the key that it needs."""
    backend, target = _first(settings, model)
    window = backend.context_window(target) if model else 0
    with_key = asking(settings, model or OWN_MODELS.get(client, ""), reached)
    return client_setup(client, with_key, model, window, websocket=settings.server.websocket)


def asking(settings: Settings, model: str, reached: Access) -> Access:
    """The same access with the key to ask for this model: the user's own where the gateway passes it on."""
    backend, _ = _first(settings, model)
    key = own_key(backend) if not settings.keys else ""
    return msgspec.structs.replace(reached, key=key, key_variable=own_key_variable(backend)) if key else reached


def _first(settings: Settings, model: str) -> tuple[Backend, str]:
    """The first backend that serves a model, and the name to ask it for."""
    found = settings.serving(model)
    return found[0] if found else (DEMO, "")


def own_key(backend: Backend) -> str:
    """The user's own key for a server that gets the keys of clients; nothing if there is none."""
    variable = own_key_variable(backend)
    return os.environ[variable].strip() if variable else ""


def own_key_variable(backend: Backend) -> str:
    """The variable that holds it: that of a preset with the same address, so that it goes to no other server."""
    if backend.has_key or not backend.base_url:
        return ""
    presets = [each for each in PRESETS.values() if _origin(each.base_url) == _origin(backend.base_url)]
    return next((each.api_key_env for each in presets if os.environ.get(each.api_key_env)), "")


def _origin(url: str) -> tuple[str, str]:
    parsed = urlsplit(url)
    return parsed.scheme, parsed.netloc
