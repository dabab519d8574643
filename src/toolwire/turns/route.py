"""A route: one configured backend, ready to take requests."""

from collections.abc import Awaitable, Callable, Collection

import msgspec

from toolwire.assembly import ServerFacts
from toolwire.backends.lowered import LoweredConversation
from toolwire.config.settings import Backend
from toolwire.core.request import Request
from toolwire.turns.explain import AskedBackend, KeySource
from toolwire.upstream.reply import Origin, Upstream


class Route(msgspec.Struct, frozen=True):
    """One backend with its upstream. An optional callable is None if the server has no such endpoint."""

    backend: Backend
    upstream: Upstream
    converse: Callable[[Request, str, str], LoweredConversation]
    """Begins a conversation, from a request, a seed for ids and the tenant."""
    recorded_as: str
    """The protocol of its replies, and of recordings of them."""
    facts: ServerFacts = ServerFacts()
    count_tokens: Callable[[Request, str], Awaitable[int | None]] | None = None
    """Counts the tokens of a request, with the client's key; returns None if the server fails to."""
    models: Collection[str] | None = None
    """All of its models; None if they are not known."""
    list_models: Callable[[str], Awaitable[bytes]] | None = None
    """Fetches the list of models, with the client's key."""
    account_usage: Callable[[], Awaitable[bytes]] | None = None
    """Fetches the usage of the account behind a login."""
    obstacle: Callable[[], str] = str
    """Why it cannot be asked now, as `find_obstacle` says it; empty if it can."""
    shows_url: bool = False
    """Whether clients may see the address of its server."""

    def describe_backend(self, key: str) -> AskedBackend:
        """Facts for error messages; `key` is the client's own, if it is passed on."""
        backend = self.backend
        source: KeySource = "client" if key else "none"
        if backend.api_key_env:
            source = "environment"
        elif backend.auth:
            source = "login"
        return AskedBackend(backend.name, self.upstream.url, source, backend.api_key_env, self.shows_url)

    @property
    def origin(self) -> Origin | None:
        """The server that its requests go to; None if there is none."""
        return self.upstream.origin

    @property
    def takes_client_key(self) -> bool:
        """Whether its server gets the client's own key."""
        return self.origin is not None and not self.backend.has_key
