"""A settings file that cannot be read is one line that names it, whatever is wrong with it."""

from pathlib import Path
from typing import Any

import pytest

from toolwire.config.settings import Server, Settings, SettingsError, Store, load
from toolwire.config.validate import find_faults


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"[server", "Expected"),
        (b"a = '\xff'", "utf-8"),
        (b"a = " + b"1" * 5000, "digits"),
        (b"a = " + b"[" * 5000, "nested too deeply"),
        (b"a = " + b"{a=" * 5000, "nested too deeply"),
    ],
    ids=["no TOML", "no UTF-8", "a huge number", "nested lists", "nested tables"],
)
def test_a_file_that_cannot_be_read_is_named(tmp_path: Path, content: bytes, said: str):
    path = tmp_path / "toolwire.toml"
    path.write_bytes(content)
    with pytest.raises(SettingsError) as error:
        load(str(path))
    assert str(error.value).startswith(f"{path}: ")
    assert said in str(error.value)


@pytest.mark.parametrize(
    ("content", "field"),
    [
        ("[server]\ndrain = inf", "server.drain"),
        ("[store]\nmax_age = nan", "store.max_age"),
        (
            '[[backends]]\nname = "a"\nkind = "chat"\nbase_url = "http://h/v1"\nretry_budget = inf',
            "backends[0] (a).retry_budget",
        ),
    ],
)
def test_a_number_without_end_is_refused(tmp_path: Path, content: str, field: str):
    path = tmp_path / "toolwire.toml"
    path.write_text(content)
    with pytest.raises(SettingsError) as error:
        load(str(path))
    assert str(error.value) == f"{path}: {field}: a finite number is needed here"


TOO_SMALL = {
    "server": ("commit_after", "keepalive", "drain", "websocket_limit"),
    "store": ("max_age",),
    "timeouts": ("connect", "first_byte", "idle", "progress", "total"),
}


@pytest.mark.parametrize(
    ("table", "field"), [(table, field) for table, fields in TOO_SMALL.items() for field in fields]
)
def test_a_time_below_zero_is_refused(table: str, field: str):
    least = "more than 0" if table == "timeouts" else "at least 0"
    with pytest.raises(SettingsError) as error:
        Settings.from_dict({table: {field: -1}}, {})
    assert str(error.value) == f"settings: {table}.{field}: it must be {least}; received -1"


@pytest.mark.parametrize(
    ("kind", "fields", "said"),
    [
        ("chat", {"retries": -1}, ".retries: it must be at least 0; received -1"),
        ("chat", {"profile": {"id_length": -1}}, ".profile.id_length: it must be at least 0; received -1"),
        ("messages", {"profile": {"max_tokens": 0}}, ".profile.max_tokens: it must be at least 1; received 0"),
        ("responses", {"profile": {"name_length": 0}}, ".profile.name_length: it must be at least 1; received 0"),
        ("codex", {"profile": {"turns": 0}}, ".profile.turns: it must be at least 1; received 0"),
        ("codex", {"profile": {"silence": 0}}, ".profile.silence: it must be more than 0; received 0"),
    ],
)
def test_a_number_of_a_backend_that_is_too_small_is_refused(kind: str, fields: dict[str, Any], said: str):
    address = {} if kind == "codex" else {"base_url": "http://h/v1"}
    with pytest.raises(SettingsError) as error:
        Settings.from_dict({"backends": [{"name": "a", "kind": kind, **address, **fields}]}, {})
    assert str(error.value) == f"settings: backends[0] (a){said}"


def test_every_faulty_size_is_reported():
    server = Server(max_body=-5, max_in_flight="1MB", max_reply="many")
    faults = [*find_faults(Settings(server=server, store=Store(max_size=-1)), {})]
    hint = "is not a size; write 32MB or a number of bytes"
    assert faults == [f"server.max_body: -5 {hint}", f"server.max_reply: 'many' {hint}", f"store.max_size: -1 {hint}"]


def test_a_faulty_size_does_not_hide_one_that_is_too_small():
    server = Server(max_in_flight="1MB", max_preamble=-1)
    faults = [*find_faults(Settings(server=server), {})]
    assert "server.max_in_flight: it must be at least server.max_body" in faults
    assert len(faults) == 2


def test_variables_are_those_of_the_given_environment(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("MYKEY", raising=False)
    table = {"keys": [{"name": "a", "key_env": "MYKEY"}], "store": {"url_env": "MYSTORE"}}
    settings = Settings.from_dict(table, {"MYKEY": "x", "MYSTORE": "memory:"})
    assert (settings.key_of(settings.keys[0]), settings.store.place) == ("x", "memory:")


@pytest.mark.parametrize(
    ("table", "field"),
    [({"keys": [{"name": "a", "key_env": "MINE"}]}, "keys[0] (a)"), ({"store": {"url_env": "MINE"}}, "store.url_env")],
)
def test_a_variable_that_only_this_process_has_is_not_set_in_a_given_environment(
    monkeypatch: pytest.MonkeyPatch, table: dict[str, Any], field: str
):
    monkeypatch.setenv("MINE", "memory:")
    with pytest.raises(SettingsError) as error:
        Settings.from_dict(table, {})
    assert str(error.value).startswith(f"settings: {field}: the variable MINE is not set")
