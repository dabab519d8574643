"""What one worker may take of what the settings allow the machine."""

import msgspec

from toolwire.config.settings import Backend, Settings, bytes_of


def divided(settings: Settings, slot: int) -> Settings:
    """The settings of the worker with this number: limits of the machine are its share of them, and at least one.

    Bytes in flight are at least those of one body with its reply, or a request that is allowed could never be answered.
    """
    server = settings.server
    count = server.workers
    whole = bytes_of(server.max_in_flight)
    least = min(whole, bytes_of(server.max_body) + bytes_of(server.max_reply))
    in_flight = max(_share(whole, count, slot), least)
    connections = _share(server.max_connections, count, slot)
    kept = _share(bytes_of(settings.console.max_size), count, slot)
    return msgspec.structs.replace(
        settings,
        server=msgspec.structs.replace(server, max_in_flight=in_flight, max_connections=connections),
        console=msgspec.structs.replace(settings.console, max_size=kept),
        backends=tuple(_divided_backend(each, count, slot) for each in settings.backends),
    )


def _divided_backend(backend: Backend, count: int, slot: int) -> Backend:
    return msgspec.structs.replace(backend, workers=_share(backend.workers, count, slot))


def _share(whole: int, count: int, slot: int) -> int:
    return max(1, whole // count + (slot < whole % count))
