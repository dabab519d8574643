"""A settings file that cannot be read is one line that names it, whatever is wrong with it."""

from pathlib import Path

import pytest

from toolwire.config.settings import SettingsError, load


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
