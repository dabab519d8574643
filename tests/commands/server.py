"""A server that answers as a function says: the far end of the wire for commands that only ask whether it is there."""

import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Answer = tuple[int, str, bytes] | tuple[int, str, bytes, Mapping[str, str]]
"""Status, type, body and further headers."""


class Silence:
    """Answers nothing while the context lasts; `asked` is released for each request."""

    def __init__(self) -> None:
        self.asked = threading.Semaphore(0)
        self._over = threading.Event()

    def __enter__(self) -> "Silence":
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()

    def __call__(self, method: str, path: str, headers: Mapping[str, str]) -> Answer:
        self.asked.release()
        self._over.wait(600)
        return 503, "application/json", b"{}"


class Server:
    """Answers on a free port while the context lasts."""

    def __init__(self, answer: Callable[[str, str, Mapping[str, str]], Answer]) -> None:
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self._answer("GET")

            def do_POST(self) -> None:
                self.rfile.read(int(self.headers.get("content-length", 0)))
                self._answer("POST")

            def _answer(self, method: str) -> None:
                status, kind, body, *more = answer(method, self.path, {k.lower(): v for k, v in self.headers.items()})
                self.send_response(status)
                self.send_header("content-type", kind)
                self.send_header("content-length", str(len(body)))
                for headers in more:
                    for name, value in headers.items():
                        self.send_header(name, value)
                with suppress(ConnectionError):  # who asked may have given up
                    self.end_headers()
                    self.wfile.write(body)

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.port = self._server.server_address[1]
        self.url = f"http://127.0.0.1:{self.port}"

    def __enter__(self) -> "Server":
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
