"""Makes the store that the settings name, and checks it before a gateway starts."""

import sqlite3
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias

from toolwire.config.settings import Settings, SettingsError, bytes_of
from toolwire.memory.private_files import find_state_folder, make_folders, restrict_access
from toolwire.memory.sqlite import SqliteStore, store_failure_of
from toolwire.memory.store import StoreFailed

if TYPE_CHECKING:
    from toolwire.memory.postgres import PostgresStore

AnyStore: TypeAlias = "SqliteStore | PostgresStore"


def make_store(settings: Settings) -> AnyStore:
    """Make the store without opening it."""
    store, size = settings.store, bytes_of(settings.store.max_size)
    if store.is_database:
        from toolwire.memory.postgres import PostgresStore  # noqa: PLC0415 - an extra

        return PostgresStore(store.place, store.max_age, size, store.lease, pooler=store.pooler)
    return SqliteStore(store.place, store.max_age, size, lease=store.lease)


def prepare_store(settings: Settings, say: Callable[[str], None]) -> AnyStore:
    """Make and check the store without opening it. Raises `SettingsError` for a lasting fault; `say` shows warnings."""
    name = settings.store.setting
    try:
        if not settings.store.url and not settings.store.url_env:
            make_folders(find_state_folder())
            restrict_access(find_state_folder())
        store = make_store(settings)
    except (OSError, RuntimeError) as error:
        raise SettingsError(f"{name}: there is no place for the store: {error}") from None
    where = f"{name}: {settings.store.shown}"
    try:
        store.check()
    except (sqlite3.Error, StoreFailed) as error:
        if store_failure_of(error).is_lasting:
            raise SettingsError(f"{where} cannot be used: {error}") from None
        say(f"{where} cannot be used yet: {error}")
    for path in store.tightened:
        say(f"{name}: {path} was readable by others; now only you can read it")
    return store
