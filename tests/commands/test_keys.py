"""`toolwire keys`: keys that a gateway with the same store accepts."""

import json
import re
import time
from pathlib import Path

import pytest

from tests.commands.desk import Desk

ACCESS = "[access]\nissued_keys = true\n"


@pytest.fixture
def kept(desk: Desk) -> Desk:
    desk.configure(f'{ACCESS}[store]\nurl = "sqlite:{desk.folder / "kept.db"}"\n')
    return desk


def test_a_key_is_issued_alone_on_stdout_and_listed_without_its_secret(kept: Desk):
    made = kept.run("keys", "create", "ann", "--team", "blue", "-m", "gpt-*", "--label", "app=notes", "--expires", "9d")
    assert re.fullmatch(r"sk-tw-[\w-]{43}\n", made.stdout)
    assert made.stderr == "toolwire: the key of ann, which cannot be shown again:\n"
    listed = kept.good("keys", "list")
    assert re.search(r"^ann +active +blue +gpt-\* +all +app=notes +none +\d{4}-", listed, re.MULTILINE)
    shown = json.loads(kept.good("keys", "show", "ann", "--json"))
    assert 9 * 86_400 - 600 < shown["expires_at"] - time.time() < 9 * 86_400 + 1
    assert "key" not in shown
    for path in (kept.folder / "kept.db", kept.folder / "kept.db-wal"):
        assert not path.exists() or made.stdout.strip().encode() not in path.read_bytes()


def test_a_key_is_rotated_and_revoked(kept: Desk):
    assert "There are no issued keys yet" in kept.good("keys", "list")
    first = kept.good("keys", "create", "ann")
    assert kept.good("keys", "rotate", "ann", "--expires", "2099-01-31") not in ("", first)
    assert "2099-01-31" in kept.good("keys", "show", "ann")
    assert "revoked" in kept.good("keys", "revoke", "ann")
    again = kept.run("keys", "rotate", "ann")
    assert (again.returncode, again.stdout) == (2, "")
    assert again.stderr == "toolwire: The key 'ann' was revoked; create one with another name.\n"
    assert json.loads(kept.good("keys", "list", "--json"))["keys"][0]["status"] == "revoked"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["create", "a/b"], "name must have"),
        (["create", "ann", "--backend", "nowhere"], "there is no backend 'nowhere'; there are demo"),
        (["create", "ann", "--label", "app"], "--label: 'app' has no value; write NAME=VALUE"),
        (["create", "ann", "--expires", "soon"], "'soon' is no time such as 90d"),
        (["create", "ann", "--expires", "2001-01-31"], "expires_at must be in the future"),
        (["create", "ann", "--team", "\x1b[2J"], "team must have printable characters only"),
        (["show", "nobody"], "There is no issued key named 'nobody'"),
        (["revoke", "nobody"], "There is no issued key named 'nobody'"),
    ],
)
def test_a_mistake_is_named_in_one_line(kept: Desk, arguments: list[str], message: str):
    done = kept.run("keys", *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert message in done.stderr
    assert done.stderr.count("\n") == 1


def test_the_settings_decide_whether_a_key_is_of_use(desk: Desk):
    desk.configure('[store]\nurl = "sqlite:kept.db"\n')
    assert "issued_keys = true in [access]" in desk.run("keys", "create", "ann").stderr
    desk.configure(f'{ACCESS}[store]\nurl = "memory:"\n')
    refused = desk.run("keys", "list")
    assert (refused.returncode, refused.stdout) == (2, "")
    assert "use the admin API" in refused.stderr


def test_keys_are_part_of_an_export(kept: Desk):
    kept.good("keys", "create", "ann")
    kept.good("store", "export", "copy.jsonl")
    other = kept.folder / "other.toml"
    other.write_text(f'{ACCESS}[store]\nurl = "sqlite:other.db"\n')
    kept.good("store", "import", "copy.jsonl", "-c", str(other))
    assert kept.good("keys", "list", "-c", str(other)) == kept.good("keys", "list")
    lines = (kept.folder / "copy.jsonl").read_text()
    bad = Path(kept.folder / "bad.jsonl")
    bad.write_text(lines.replace('"name":"ann"', '"name":"ben"'))
    assert "the value of facts is not valid" in kept.run("store", "import", "bad.jsonl", "-c", str(other)).stderr


def test_limits_are_given_by_name(kept: Desk):
    kept.good("keys", "create", "ann", "--limit", "requests_per_minute=60", "--limit", "concurrent_turns=4")
    assert "requests_per_minute=60 concurrent_turns=4" in kept.good("keys", "show", "ann")
    kept.good("keys", "update", "ann", "--limit", "tokens_per_minute=5", "--team", "blue")
    shown = json.loads(kept.good("keys", "show", "ann", "--json"))
    assert (shown["limits"], shown["team"]) == ({"tokens_per_minute": 5}, "blue")
    for limit in ("requests=1", "concurrent_turns=-1", "concurrent_turns=many", "concurrent_turns"):
        done = kept.run("keys", "create", "ben", "--limit", limit)
        assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
        assert limit.partition("=")[0] in done.stderr
