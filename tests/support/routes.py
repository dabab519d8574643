"""The routes: one gateway in front of one upstream that serves as a backend of every kind."""

from typing import Any

import httpx

from tests.support.client_readers import PATHS, Held, Refused, address, hold
from tests.support.gateway import Gateway
from tests.support.scripts import DECLARED, KINDS, Declared, Name
from tests.support.upstream import Upstream

Json = dict[str, Any]


def backends(url: str) -> str:
    """Two backends of every kind, named `KIND` and `other-KIND`; models are addressed as `KIND/NAME`."""
    return "\n".join(
        f'[[backends]]\nname = "{name}"\nkind = "{kind}"\nbase_url = "{url}"\nretries = 0\n'
        for kind in KINDS
        for name in (kind, f"other-{kind}")
    )


def question(dialect: Name, model: str, tools: tuple[Declared, ...], *, stream: bool, **fields: Any) -> Json:
    """A first request of a client of this dialect: one user message, and the tools if there are any."""
    body: Json = {"model": model, "stream": stream, **fields}
    if tools:
        body["tools"] = DECLARED[dialect](tools)
    if dialect == "responses":
        return {"input": [{"role": "user", "content": "Go."}], **body}
    if dialect == "messages":
        return {"max_tokens": 99, "messages": [{"role": "user", "content": "Go."}], **body}
    if dialect == "gemini":
        config = {"generationConfig": {"thinkingConfig": {"includeThoughts": True}}}
        return {"contents": [{"role": "user", "parts": [{"text": "Go."}]}], **config, **body}
    asked = {"stream_options": {"include_usage": True}} if stream else {}
    return {"messages": [{"role": "user", "content": "Go."}], **asked, **body}


def asked_path(kind: Name, model: str, *, stream: bool) -> str:
    """The path at which a backend of this kind is asked."""
    if kind != "gemini":
        return PATHS[kind]
    return f"/v1/models/{model}:{'streamGenerateContent' if stream else 'generateContent'}"


class Routes:
    """The running gateway with its backends."""

    def __init__(self, gateway: Gateway, upstream: Upstream, http: httpx.Client) -> None:
        self.gateway = gateway
        self.upstream = upstream
        self.http = http

    def post(self, dialect: Name, body: Json, key: str = "") -> httpx.Response:
        headers = {"authorization": f"Bearer {key}"} if key else {}
        path, sent = address(dialect, body)
        return self.http.post(self.gateway.url + path, json=sent, headers=headers)

    def ask(self, dialect: Name, body: Json, key: str = "") -> Held:
        """The turn this request brings, in the client's hand."""
        return hold(self.post(dialect, body, key), dialect, stream=bool(body.get("stream")))

    def refused(self, dialect: Name, body: Json) -> Refused:
        """The error this request brings."""
        try:
            held = self.ask(dialect, body)
        except Refused as refused:
            return refused
        raise AssertionError(f"There is a turn instead of an error: {held.seen}")
