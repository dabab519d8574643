"""Issues, rotates and revokes keys in the store, for `toolwire keys` and for the admin API."""

import re
import secrets
import time
from collections.abc import Callable
from typing import Annotated, Literal

import msgspec
from msgspec.structs import asdict, replace

from toolwire.config.settings import Settings
from toolwire.config.validate import find_glob_fault
from toolwire.core.errors import BadRequest
from toolwire.gateway.issued_keys import hash_secret
from toolwire.memory.sql.store import Store
from toolwire.memory.store import IssuedKey, KeyLimits

PREFIX = "sk-tw-"
"""What a secret begins with: clients and scanners for secrets take it for a key."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@+-]{0,127}")
MAX_TEXTS, MAX_TEXT_CHARS = 100, 256
"""Maximum models, backends or labels of a key, and the characters of each."""

ExpiryTime = Annotated[int, msgspec.Meta(ge=0, le=253402300799)]


class NewKey(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A request for a key."""

    name: str
    team: str = ""
    models: tuple[str, ...] = ()
    backends: tuple[str, ...] = ()
    labels: dict[str, str] = {}
    limits: KeyLimits = KeyLimits()
    expires_at: ExpiryTime = 0
    """Seconds since 1970; 0 for never."""


class KeyUpdate(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A request to change a key. What is not given stays."""

    team: str | msgspec.UnsetType = msgspec.UNSET
    models: tuple[str, ...] | msgspec.UnsetType = msgspec.UNSET
    backends: tuple[str, ...] | msgspec.UnsetType = msgspec.UNSET
    labels: dict[str, str] | msgspec.UnsetType = msgspec.UNSET
    limits: KeyLimits | msgspec.UnsetType = msgspec.UNSET
    expires_at: ExpiryTime | msgspec.UnsetType = msgspec.UNSET


class KeyView(msgspec.Struct, frozen=True):
    """A key as it is shown: without its secret, except once."""

    name: str
    status: Literal["active", "expired", "revoked"]
    team: str
    models: tuple[str, ...]
    backends: tuple[str, ...]
    labels: dict[str, str]
    limits: dict[str, int]
    created_at: int
    rotated_at: int | None
    expires_at: int | None
    revoked_at: int | None
    object: Literal["key"] = "key"
    key: str | msgspec.UnsetType = msgspec.UNSET
    """The secret."""


class KeyAdmin:
    """Changes keys. Every method may raise `BadRequest`, which names the field, and `StoreFailed`."""

    def __init__(self, store: Store, settings: Settings, clock: Callable[[], float] = time.time) -> None:
        self._store = store
        self._settings = settings
        self._clock = clock

    async def list(self) -> list[KeyView]:
        """All keys, by name."""
        found: dict[str, IssuedKey] = {}
        last = 0
        while (changes := await self._store.list_changed_keys(last)).keys:
            found.update((key.name, key) for key in changes.keys)
            last = changes.last
        return [self._show(found[name]) for name in sorted(found)]

    async def find(self, name: str) -> KeyView:
        """The key of this name."""
        found = await self._store.find_key(name)
        if found is None:
            raise _make_unknown(name)
        return self._show(found)

    async def create(self, new: NewKey) -> KeyView:
        """Issue a key. Only this answer has its secret."""
        self._check(new)
        secret = _make_secret()
        key = IssuedKey(
            new.name,
            hash_secret(secret.encode()),
            created=self._clock(),
            expires=float(new.expires_at),
            team=new.team,
            models=new.models,
            backends=new.backends,
            labels=new.labels,
            limits=new.limits,
        )
        if not await self._store.put_key(key, None):
            message = f"There is, or was, a key named {new.name!r}. Stored data belongs to the name: use another."
            raise BadRequest(message, "name", "key_exists", 409)
        return replace(self._show(key), key=secret)

    async def rotate(self, name: str, expires_at: int | None = None) -> KeyView:
        """Give a key another secret, and with `expires_at` another expiry. Only this answer has the secret."""
        secret = _make_secret()

        def rotate(key: IssuedKey) -> IssuedKey:
            expires = key.expires if expires_at is None else float(expires_at)
            self._check_expiry(expires)
            return replace(key, digest=hash_secret(secret.encode()), rotated=self._clock(), expires=expires)

        return replace(self._show(await self._change(name, rotate)), key=secret)

    async def update(self, name: str, changes: KeyUpdate) -> KeyView:
        """Change what a key may use, its team, labels or expiry. Turns that run go on."""
        given = {field: value for field, value in asdict(changes).items() if value is not msgspec.UNSET}
        if "expires_at" in given:
            given["expires"] = float(given.pop("expires_at"))
            self._check_expiry(given["expires"])

        def update(key: IssuedKey) -> IssuedKey:
            changed = replace(key, **given)
            self._check_fields(changed)
            return changed

        return self._show(await self._change(name, update))

    async def revoke(self, name: str) -> KeyView:
        """End a key for good. Its name stays, so that its data is never another's."""

        def revoke(key: IssuedKey) -> IssuedKey:
            return replace(key, revoked=self._clock())

        found = await self._store.find_key(name)
        if found is not None and found.revoked:
            return self._show(found)
        return self._show(await self._change(name, revoke))

    async def _change(self, name: str, change: Callable[[IssuedKey], IssuedKey]) -> IssuedKey:
        """Replace a key by what `change` makes of it, again if another process changed it meanwhile."""
        while (before := await self._store.find_key(name)) is not None:
            if before.revoked:
                message = f"The key {name!r} was revoked; create one with another name."
                raise BadRequest(message, "name", "key_revoked", 409)
            key = change(before)
            if await self._store.put_key(key, before):
                return key
        raise _make_unknown(name)

    def _check(self, new: NewKey) -> None:
        if not _NAME.fullmatch(new.name):
            message = "name must have 1 to 128 letters, digits and . _ @ + -, and begin with a letter or a digit."
            raise BadRequest(message, "name")
        if any(key.name == new.name for key in self._settings.keys):
            raise BadRequest(f"A [[keys]] entry has the name {new.name!r}.", "name", "key_exists", 409)
        self._check_fields(new)
        self._check_expiry(new.expires_at)

    def _check_fields(self, new: NewKey | IssuedKey) -> None:
        for field, texts in (
            ("team", (new.team,)),
            ("models", new.models),
            ("backends", new.backends),
            ("labels", (*new.labels,)),
            ("labels", (*new.labels.values(),)),
        ):
            if len(texts) > MAX_TEXTS or not all(len(text) <= MAX_TEXT_CHARS for text in texts):
                message = f"{field} must have at most {MAX_TEXTS} texts of at most {MAX_TEXT_CHARS} characters."
                raise BadRequest(message, field)
            if not all(text.isprintable() for text in texts):
                raise BadRequest(f"{field} must have printable characters only.", field)
        for glob in new.models:
            if fault := find_glob_fault(glob):
                raise BadRequest(f"models: {glob!r} matches no model: {fault}.", "models")
        known = [backend.name for backend in self._settings.backends]
        for name in new.backends:
            if name not in known:
                raise BadRequest(f"backends: there is no backend {name!r}; there are {', '.join(known)}.", "backends")

    def _check_expiry(self, expires: float) -> None:
        if expires and expires <= self._clock():
            raise BadRequest("expires_at must be in the future, in seconds since 1970.", "expires_at")

    def _show(self, key: IssuedKey) -> KeyView:
        status = "revoked" if key.revoked else "active" if key.is_valid(self._clock()) else "expired"
        return KeyView(
            key.name,
            status,
            key.team,
            key.models,
            key.backends,
            key.labels,
            {name: most for name, most in asdict(key.limits).items() if most},
            created_at=int(key.created),
            rotated_at=int(key.rotated) or None,
            expires_at=int(key.expires) or None,
            revoked_at=int(key.revoked) or None,
        )


def _make_secret() -> str:
    return PREFIX + secrets.token_urlsafe(32)


def _make_unknown(name: str) -> BadRequest:
    return BadRequest(f"There is no issued key named {name!r}.", "name", "key_not_found", 404)
