"""A backend that writes bytes as it likes, which no HTTP library would."""

import re
import socket
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress


class RawBackend:
    """Answers every request with these bytes and closes the connection."""

    def __init__(self, answer: Callable[[], Iterable[bytes]]) -> None:
        self._answer = answer
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listening.getsockname()[1]}/v1"
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        with suppress(OSError):
            while True:
                connection, _ = self._listening.accept()
                with connection, suppress(OSError):
                    _read_request(connection)
                    for piece in self._answer():
                        connection.sendall(piece)

    def stop(self) -> None:
        self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        self._thread.join(60)


def _read_request(connection: socket.socket) -> None:
    received = b""
    while b"\r\n\r\n" not in received:
        received += connection.recv(65536)
    head, _, body = received.partition(b"\r\n\r\n")
    found = re.search(rb"content-length: (\d+)", head.lower())
    left = int(found[1]) - len(body) if found else 0
    while left > 0:
        left -= len(connection.recv(65536))
