"""Where the store is: what is wrong with that is one line, and no password is in it."""

import asyncio
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from toolwire.cli.doctor import examine
from toolwire.config.decode import SettingsError
from toolwire.config.display import mask
from toolwire.config.settings import Settings, Store, load
from toolwire.config.stores import make_store, prepare_store
from toolwire.memory.postgres import PostgresStore
from toolwire.memory.sqlite import SqliteStore

SECRET = "hunter2"
GOOD = f"postgresql://u:{SECRET}@127.0.0.1:1/d"
BROKEN = (
    f"postgresql://u:{SECRET}/x@127.0.0.1:1/d",
    f"postgresql://u:{SECRET}@127.0.0.1:port/d",
    f"postgres//u:{SECRET}@127.0.0.1/d",
    f"postgresql://u:{SECRET}?x@127.0.0.1/d",
    f"postgresql://u:{SECRET}#x@127.0.0.1/d",
    f"postgresql://u:{SECRET}%zz@127.0.0.1:1:1/d",
)


def written(folder: Path, **store: Any) -> str:
    path = folder / "toolwire.toml"
    lines = [f"{name} = {msgspec.json.encode(value).decode()}" for name, value in store.items()]
    path.write_text("\n".join(["[store]", *lines]))
    path.chmod(0o600)
    return str(path)


def fault(path: str) -> str:
    """What keeps a gateway with these settings from starting."""
    with pytest.raises(SettingsError) as raised:
        prepare_store(load(path), lambda line: None)
    return str(raised.value)


def test_the_url_chooses_the_engine(tmp_path, monkeypatch):
    monkeypatch.setenv("STORE", GOOD)
    assert isinstance(make_store(load(written(tmp_path, url=GOOD))), PostgresStore)
    assert isinstance(make_store(load(written(tmp_path, url_env="STORE"))), PostgresStore)
    for url in ("", "memory:", "sqlite:kept.db"):
        assert isinstance(make_store(load(written(tmp_path, url=url))), SqliteStore)


@pytest.mark.parametrize("url", BROKEN)
def test_a_url_that_cannot_be_read_shows_nothing_of_its_password(tmp_path, monkeypatch, url):
    monkeypatch.setenv("STORE", url)
    for path in (written(tmp_path, url=url), written(tmp_path, url_env="STORE")):
        said = fault(path)
        assert SECRET not in said
        assert "\n" not in said


def test_a_database_that_is_away_is_no_reason_not_to_start(tmp_path):
    said: list[str] = []
    store = prepare_store(load(written(tmp_path, url=GOOD)), said.append)
    assert isinstance(store, PostgresStore)
    (line,) = said
    assert line.startswith("store.url: postgresql://127.0.0.1:1/d cannot be used yet: ")


@pytest.mark.parametrize(
    ("store", "said"),
    [
        ({"url": "mysql://h/d"}, "store.url: 'mysql://h/d' is neither memory: nor sqlite:PATH nor postgresql://"),
        ({"url": "memory:", "url_env": "STORE"}, "store.url_env: there is a store.url too"),
        ({"url_env": GOOD}, "store.url_env: this is not the name of a variable"),
        ({"url_env": "NO_SUCH_STORE"}, "store.url_env: the variable NO_SUCH_STORE is not set"),
    ],
)
def test_a_mistake_is_named_with_its_field(tmp_path, store, said):
    found = fault(written(tmp_path, **store))
    assert said in found
    assert SECRET not in found


def test_without_the_extra_one_line_says_how_to_install_it(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "asyncpg", None)
    said = (
        f"PostgreSQL needs the package asyncpg, which is not installed: {sys.executable} -m pip install 'asyncpg>=0.30'"
    )
    assert fault(written(tmp_path, url=GOOD)).endswith(said)


def test_the_variable_is_kept_from_child_processes():
    settings = Settings(store=Store(url_env="STORE"))
    assert "STORE" in settings.secret_variables


@pytest.mark.parametrize("url", [GOOD, f"{GOOD}?password={SECRET}", *BROKEN])
def test_settings_are_shown_without_the_password(url):
    assert SECRET not in str(mask({"store": {"url": url}}))
    assert SECRET not in Store(url=url).shown


def test_the_doctor_asks_the_database_and_shows_no_password(tmp_path):
    found = asyncio.run(examine(written(tmp_path, url=GOOD)))
    (store,) = [each for each in found if each.name == "store"]
    assert store.state == "bad"
    assert "127.0.0.1:1/d" in store.text
    assert SECRET not in str(found)
