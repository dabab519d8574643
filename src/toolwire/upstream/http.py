"""Upstream HTTP: one session for all backends.

Turns go directly to connections of our own (`connection.py`). aiohttp sends requests through a proxy, and those with a
small answer.
"""

import asyncio
import os
import socket
import ssl
from collections.abc import Mapping
from errno import ECONNREFUSED
from functools import partial
from io import BytesIO
from typing import ClassVar, Protocol, Self
from urllib.request import getproxies, proxy_bypass

import aiohttp
import msgspec
from aiohttp.abc import AbstractStreamWriter
from yarl import URL

from toolwire.core.backend import Opening, Post
from toolwire.core.redact import BlankCredentials, CredentialFilter, find_credentials, find_filter, is_secret_name
from toolwire.upstream.connection import (
    BUFFER_SIZE,
    KEEP_ALIVE,
    MAX_READ,
    Address,
    ConnectFailed,
    ConnectTimeout,
    Disconnected,
    Pool,
)
from toolwire.upstream.reply import CONTROL, Broken, Take, Timeouts, Upstream, make_broken, sanitize_headers
from toolwire.upstream.scheduling import give_way

MAX_SMALL_ANSWER = 4 * 1000 * 1000
"""Maximum bytes of a reply that is not a turn, such as a list of models."""
SMALL_ANSWER_TIMEOUT = 8
"""Seconds for such a reply, from the connection to its last byte."""
LARGE_BODY = 1 << 20
"""Bodies of at least this size, in bytes, are written in pieces."""


MAX_TARGETS = 256
"""Maximum paths of one server whose request target is kept."""


class Credentials(Protocol):
    """The source of a backend's key; `client_key` is the key that the client presented."""

    def make_headers(self, client_key: str) -> Mapping[str, str]:
        """The headers that carry the key."""
        ...

    async def renew(self) -> None:
        """Renew a token that expires. Raises `Broken`."""
        ...


class _BareRequest(aiohttp.ClientRequest):
    """A request without the default `Accept` and `Accept-Encoding` headers of aiohttp."""

    DEFAULT_HEADERS: ClassVar[dict[str, str]] = {}


class HttpSession:
    """The connections of all upstreams. It limits the time to connect; readers have their own deadlines."""

    def __init__(self, timeouts: Timeouts) -> None:
        self.pool = Pool(timeouts.connect)
        self.client = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEP_ALIVE),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=timeouts.connect),
            read_bufsize=BUFFER_SIZE,
            request_class=_BareRequest,
            cookie_jar=aiohttp.DummyCookieJar(),
        )

    @property
    def closed(self) -> bool:
        return self.client.closed

    async def close(self) -> None:
        """Close all connections."""
        await self.pool.close()
        await self.client.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()


def find_proxy(url: URL) -> str | None:
    """The HTTP proxy for an address, from the environment; None if there is none."""
    if url.host is None or proxy_bypass(url.host):
        return None
    return getproxies().get(url.scheme)


class HttpUpstream(Upstream):
    """Sends requests to one backend."""

    def __init__(
        self,
        session: HttpSession,
        base_url: str,
        credentials: Credentials,
        headers: Mapping[str, str],
        query: Mapping[str, str] | None = None,
    ) -> None:
        self._session = session
        self._query = query or {}
        self._credentials = credentials
        address = URL(base_url)
        bare = address.with_user(None).with_query(None).with_fragment(None) if address.absolute else address
        self.url = str(bare).rstrip("/")
        own = {name.lower(): value for name, value in headers.items()}
        if address.user is not None:
            own = {"authorization": aiohttp.BasicAuth(address.user, address.password or "").encode(), **own}
        self._headers = {"user-agent": "toolwire", "content-type": "application/json", **own}
        configured = {**own, **self._query}
        self._secrets = find_credentials({name: value for name, value in configured.items() if is_secret_name(name)})
        """The credentials in every request."""
        self.origin = (address.scheme, address.host, address.port)
        self._proxy = find_proxy(address)
        self._address = Address(address.host or "", address.port or 0, address.scheme == "https")
        self._host = address.host_port_subcomponent or ""
        self._targets: dict[str, str] = {}  # the request target of each path

    def make_headers(self, opening: Opening, key: str) -> Mapping[str, str]:
        assert isinstance(opening, Post)
        return {**self._headers, **opening.headers, **self._credentials.make_headers(key)}

    async def open(self, opening: Opening, key: str) -> "HttpReply":
        """Send the request; returns when the headers have arrived. Raises `Broken`."""
        assert isinstance(opening, Post)
        await self._credentials.renew()
        headers, blanks = self.make_headers(opening, key), self._make_filter(key)
        size = len(opening.body)
        if size >= LARGE_BODY:
            await give_way()  # encoding it took a while
        try:
            if self._proxy is None:
                head = self._encode_head(opening.path, headers, size)
                connection = await self._session.pool.acquire(self._address)
                self.note_connection()
                asking = connection.ask(head, opening.body)
                del opening  # so that a large body is freed once it is written
                reply = await asking
                return _make_reply(reply.status, reply.headers, reply, blanks)
            url, payload = self._make_url(opening.path), _make_payload(opening.body)
            del opening
            response = await self._session.client.post(
                url, data=payload, headers=headers, proxy=self._proxy, allow_redirects=False
            )
        except (Disconnected, ConnectFailed, ConnectTimeout, aiohttp.ClientError, OSError, TimeoutError) as error:
            raise self._fail(error) from error
        self.note_connection()
        return _make_reply(response.status, response.headers, ProxiedBody(response), blanks)

    def _fail(self, error: Exception) -> Broken:
        """The failure of a request, which is noted if there was no connection."""
        broken = _explain_error(error)
        if isinstance(
            error, ConnectFailed | ConnectTimeout | aiohttp.ClientConnectorError | aiohttp.ConnectionTimeoutError
        ):
            self.note_connection(broken.failure.message)
        return broken

    def _make_filter(self, key: str) -> CredentialFilter:
        """The filter for the credentials in a request with this key of the client."""
        return find_filter((*self._secrets, *find_credentials(self._credentials.make_headers(key))))

    def _encode_head(self, path: str, headers: Mapping[str, str], size: int) -> bytes:
        """The head of a POST. Raises `Broken` if a header cannot be sent."""
        target = self._targets.get(path)
        if target is None:
            target = self._make_url(path).raw_path_qs
            if len(self._targets) < MAX_TARGETS:  # a path may hold the name of a model
                self._targets[path] = target
        if CONTROL.search("".join((*headers, *headers.values()))):
            raise make_broken(
                "invalid_header", "A header for the backend, or its key, contains a control character.", 500
            )
        host = headers.get("host", self._host)
        lines = [f"POST {target} HTTP/1.1\r\nhost: {host}\r\n"]
        lines += [f"{name}: {value}\r\n" for name, value in headers.items() if name != "host"]
        lines.append(f"content-length: {size}\r\n\r\n")
        return "".join(lines).encode()

    def at_parent(self, last: str) -> "HttpUpstream":
        """The upstream at the parent path, if this path ends with the segment `last`."""
        return self.at(self.url.removesuffix(f"/{last}"))

    def at(self, base_url: str) -> "HttpUpstream":
        """The same upstream at another address."""
        return HttpUpstream(self._session, base_url, self._credentials, self._headers, self._query)

    async def get_json(self, path: str, key: str) -> bytes:
        """Send a GET request for a small document, such as a list of models."""
        return await self.fetch_json(Post(path, b""), key)

    async def fetch_json(self, post: Post, key: str) -> bytes:
        """Send a request with a small answer, such as a token count. Raises `Broken` if the server refuses it."""
        answer = await self.fetch(post, key)
        if not 200 <= answer.status < 300:
            raise make_broken("backend_refused", f"The backend answered with status {answer.status}.")
        return answer.body

    async def fetch(self, post: Post, key: str) -> "SmallAnswer":
        """Send a POST, or a GET if it has no body, whose answer is small. Raises `Broken` if there is no answer."""
        await self._credentials.renew()
        method, payload = ("POST", _make_payload(post.body)) if post.body else ("GET", None)
        headers = self.make_headers(post, key)
        request = self._session.client.request(
            method, self._make_url(post.path), headers=headers, data=payload, proxy=self._proxy, allow_redirects=False
        )
        body = bytearray()
        try:
            async with asyncio.timeout(SMALL_ANSWER_TIMEOUT), request as response:
                async for piece in response.content.iter_any():
                    body += piece
                    if len(body) > MAX_SMALL_ANSWER:
                        message = f"The backend's reply exceeds the limit of {MAX_SMALL_ANSWER} bytes."
                        raise make_broken("reply_too_large", message)
                self.note_connection()
                blanks, location = self._make_filter(key), response.headers.get("location", "")
                content = blanks.clean(bytes(body))
                return SmallAnswer(response.status, response.content_type, content, blanks.clean_text(location))
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise self._fail(error) from error

    def _make_url(self, path: str) -> URL:
        return URL(self.url + path).extend_query(self._query)


class SmallAnswer(msgspec.Struct, frozen=True):
    """A complete answer that is not a turn."""

    status: int
    content_type: str
    body: bytes
    location: str = ""
    """Where it redirects to; redirects are not followed."""


def _make_payload(body: bytes) -> aiohttp.payload.Payload:
    """A JSON body. A large one is written in pieces so that other tasks can run."""
    if len(body) < LARGE_BODY:
        return aiohttp.BytesPayload(body, content_type="application/json")
    return _LargePayload(BytesIO(body), content_type="application/json")


class _LargePayload(aiohttp.BytesIOPayload):
    """A body that is freed once it is written, because the answer may take minutes."""

    async def write_with_length(self, writer: AbstractStreamWriter, content_length: int | None) -> None:
        try:
            await super().write_with_length(writer, content_length)
        finally:
            self._value = BytesIO()


class Body(Protocol):
    """The body of a response."""

    def read_nowait(self) -> bytes:
        """The bytes that have arrived; empty if none have."""
        ...

    async def read(self, take: Take | None = None) -> bytes | None:
        """The next bytes; empty at the end; None once `take` has returned False."""
        ...

    def is_whole(self) -> bool:
        """Whether the body is complete and read."""
        ...

    def close(self) -> None:
        """Close the connection of an incomplete body."""
        ...


class ProxiedBody:
    """The body of a response that came through a proxy."""

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self._content, self.close = response.content, response.close

    def read_nowait(self) -> bytes:
        """The bytes that have arrived; empty if none have."""
        return self._content.read_nowait(MAX_READ)

    async def read(self, take: Take | None = None) -> bytes:
        """The next bytes; empty at the end."""
        return await self._content.readany()

    def is_whole(self) -> bool:
        """Whether the body is complete and read."""
        return self._content.at_eof()


class HttpReply(msgspec.Struct, eq=False):
    """A response whose headers have arrived."""

    status: int
    headers: Mapping[str, str]
    _body: Body
    _blank: BlankCredentials | None = None

    def read_nowait(self) -> bytes:
        """The bytes that have arrived; empty if none have."""
        try:
            data = self._body.read_nowait()
        except (Disconnected, aiohttp.ClientError, OSError) as error:
            raise _explain_error(error) from error
        return self._remove_credentials(data) if data else data

    async def read(self, take: Take | None = None) -> bytes | None:
        """The next bytes; empty at the end. Raises `Broken`."""
        clean_take = take if take is None or self._blank is None else partial(self._take_clean, take)
        try:
            while data := await self._body.read(clean_take):
                if data := self._remove_credentials(data):
                    return data
        except (Disconnected, aiohttp.ClientError, OSError) as error:
            raise _explain_error(error) from error
        if data is None:
            return None
        return self._blank.end() if self._blank is not None else b""

    def _take_clean(self, take: Take, data: bytes) -> bool:
        data = self._remove_credentials(data)
        return take(data) if data else True

    def _remove_credentials(self, data: bytes) -> bytes:
        blank = self._blank
        if blank is None:
            return data
        data = blank.feed(data)
        return data + blank.end() if blank.holds and self._body.is_whole() else data

    def is_whole(self) -> bool:
        """Whether the body is complete and read."""
        return self._body.is_whole() and (self._blank is None or not self._blank.holds)

    def close(self) -> None:
        """Close the connection of an incomplete reply, which stops the model."""
        if not self._body.is_whole():
            self._body.close()


def _make_reply(status: int, headers: Mapping[str, str], body: Body, blanks: CredentialFilter) -> HttpReply:
    """A reply without the credentials of its request."""
    headers = sanitize_headers(headers)
    if not blanks:
        return HttpReply(status, headers, body)
    text = "\n".join(headers.values())
    if blanks.clean_text(text) != text:
        headers = {name.lower(): blanks.clean_text(value) for name, value in headers.items()}
    return HttpReply(status, headers, body, BlankCredentials(blanks))


def _explain_error(error: Exception) -> Broken:
    """The failure for the client; it never contains the address of the backend."""
    cause: object = getattr(error, "certificate_error", None) or getattr(error, "os_error", error)
    if isinstance(cause, ssl.SSLCertVerificationError):
        reason = cause.verify_message.partition(",")[0]  # the host follows the comma
        message = f"The backend's certificate was refused{f': {reason}' if reason else ''}."
        hint = "If it is your own certificate authority, name its file in SSL_CERT_FILE."
        return make_broken("backend_certificate", message, hint=hint)
    if isinstance(error, ConnectTimeout | aiohttp.ConnectionTimeoutError):
        hint = "Check base_url and the network; timeouts.connect sets how long to wait."
        return make_broken("backend_unreachable", "The backend cannot be reached in time.", 504, hint)
    if isinstance(error, TimeoutError):
        message = f"The backend has not answered within {SMALL_ANSWER_TIMEOUT} seconds."
        return make_broken("backend_unreachable", message, 504, "Check base_url and the network.")
    if isinstance(error, ConnectFailed | OSError) and isinstance(cause, OSError):
        reason, hint = _find_reason(error, cause)
        message = f"The backend cannot be reached{f': {reason}' if reason else ''}."
        return make_broken("backend_unreachable", message, hint=hint)
    return make_broken("backend_broke_off", "The connection to the backend broke.")


def _find_reason(error: Exception, cause: OSError) -> tuple[str, str]:
    """The reason why there is no connection, and a hint."""
    reason = os.strerror(cause.errno).lower() if cause.errno and cause.errno > 0 else ""
    if isinstance(error, aiohttp.ClientProxyConnectionError):
        return f"proxy: {reason}" if reason else "", "Check HTTP_PROXY, HTTPS_PROXY and NO_PROXY."
    if isinstance(cause, socket.gaierror):
        return "unknown host", "Check base_url."
    if isinstance(cause, ssl.SSLError):
        return "TLS failed", "Check base_url: does the server speak https?"
    return reason, "Is the server running, and is base_url right?" if cause.errno == ECONNREFUSED else ""
