"""A gateway for one program: on a free loopback port, until the process that started it ends.

`python -m toolwire.cli.temporary_gateway [FILE]` runs the gateway itself.
"""

import os
import signal
import subprocess
import sys
import threading
from collections import deque
from contextlib import nullcontext
from pathlib import Path
from queue import Empty, Queue
from typing import IO, cast

from toolwire.cli.options import say, stop
from toolwire.imports import without_working_directory
from toolwire.memory.private_files import open_private

READY = "toolwire ready on "
START_TIMEOUT = 60.0
"""Seconds for a gateway to start."""


class NotStarted(Exception):
    """Nothing was started; the message is one line for the user."""


class TemporaryGateway:
    """A gateway that runs while its context is open."""

    def __init__(self, file: str, log: Path | None) -> None:
        """Start the process, with a settings file and a file for its log. Raises `NotStarted`."""
        try:
            self._log: IO[bytes] | None = open_private(log, "a") if log is not None else None
        except OSError as error:
            raise NotStarted(f"--log: {log}: {error.strerror}") from None
        self._last: deque[str] = deque(maxlen=1)
        self._ready: Queue[str] = Queue()
        config = (str(Path(file).absolute()),) if file else ()
        # A session of its own, because Ctrl-C is meant for the program; a pipe as stdin, which ends with this process.
        self._process = subprocess.Popen(  # noqa: S603 - ourselves
            [sys.executable, "-P", "-m", "toolwire.cli.temporary_gateway", *config],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        threading.Thread(target=self._read, daemon=True).start()
        try:
            self.url = self._ready.get(timeout=START_TIMEOUT)
        except Empty:
            self.url = ""
        if not self.url:
            self._stop()
            raise NotStarted(f"the gateway did not start: {''.join(self._last) or 'it printed nothing'}")

    def __enter__(self) -> "TemporaryGateway":
        return self

    def __exit__(self, *_: object) -> None:
        if self._process.poll() is not None:
            say(f"the gateway had ended by itself: {''.join(self._last)}")
        self._stop()

    def _read(self) -> None:
        """Find the address in the gateway's output, and keep reading, so that the gateway never blocks."""
        with cast("IO[bytes]", self._process.stderr) as lines, self._log or nullcontext():
            for line in lines:
                text = line.decode(errors="replace").rstrip()
                self._last.append(text.removeprefix("toolwire: "))
                if text.startswith(READY):
                    self._ready.put(text.removeprefix(READY))
                if self._log is not None:
                    self._log.write(line)
                    self._log.flush()
        self._ready.put("")

    def _stop(self) -> None:
        self._process.terminate()
        try:
            self._process.wait(5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        cast("IO[bytes]", self._process.stdin).close()


def main() -> None:
    """Serve until the parent process ends for any reason, which closes stdin."""
    without_working_directory()
    from toolwire.config.settings import SettingsError, load, with_address, with_workers
    from toolwire.gateway.serve import serve

    def end_with_parent() -> None:
        while os.read(0, 1024):
            pass
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=end_with_parent, daemon=True).start()
    try:
        settings = load(sys.argv[1] if len(sys.argv) > 1 else None)
        serve(with_workers(with_address(settings, "127.0.0.1", 0), 1))
    except SettingsError as error:
        sys.exit(stop(error).exit_code)


if __name__ == "__main__":
    main()
