"""The gateway that `toolwire launch` starts for one program: on a free port, for this machine, until its starter ends.

python -m toolwire.cli.background [FILE]

It holds its standard input open: when that ends, its starter has ended, however it did, and so does the gateway.
"""

import os
import signal
import sys
import threading

from toolwire.cli.options import stop
from toolwire.config.settings import SettingsError, load, with_address, with_workers
from toolwire.gateway.serve import serve
from toolwire.imports import without_working_directory


def main() -> None:
    without_working_directory()
    threading.Thread(target=_end_with_starter, daemon=True).start()
    try:
        settings = load(sys.argv[1] if len(sys.argv) > 1 else None)
        serve(with_workers(with_address(settings, "127.0.0.1", 0), 1))
    except SettingsError as error:
        sys.exit(stop(error).exit_code)


def _end_with_starter() -> None:
    while os.read(0, 1024):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    main()
