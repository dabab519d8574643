"""The gateway that `toolwire launch` starts for one program: on a free port, for this machine, until its starter ends.

python -m toolwire.cli.background [FILE]

It holds its standard input open: when that ends, its starter has ended, however it did, and so does the gateway.
"""

import os
import signal
import sys
import threading

import msgspec

from toolwire.cli.options import stop
from toolwire.gateway.serve import serve
from toolwire.imports import without_working_directory
from toolwire.memory.store import StoreFailed
from toolwire.turns.settings import Settings, SettingsError, load, make_store, with_address


def main() -> None:
    without_working_directory()
    threading.Thread(target=_end_with_starter, daemon=True).start()
    try:
        settings = load(sys.argv[1] if len(sys.argv) > 1 else None)
        serve(with_address(_with_store(settings), "127.0.0.1", 0))
    except SettingsError as error:
        sys.exit(stop(error).exit_code)


def _end_with_starter() -> None:
    while os.read(0, 1024):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


def _with_store(settings: Settings) -> Settings:
    """The settings with a store in memory if another gateway uses the file."""
    store = make_store(settings)
    try:
        store.claim()
    except StoreFailed as error:
        if error.reason == "in_use":
            return msgspec.structs.replace(settings, store=msgspec.structs.replace(settings.store, url="memory:"))
    else:
        store.release()
    return settings


if __name__ == "__main__":
    main()
