"""`toolwire config`: what is in force, and where each setting comes from."""

import json
import tomllib

from tests.commands.desk import Desk

CONFIG = """
[server]
port = 8808

[[keys]]
name = "alice"
key = "alices-key"

[[backends]]
preset = "mistral"
profile = { strict = false }
headers = { x-team = "a", authorization = "team-token" }

[[backends]]
name = "agent"
kind = "codex"
overrides = { model_providers = { mine = { base_url = "http://u:hunter2@x/v1", experimental_bearer_token = "tok", env_key = "MINE" } } }
"""
SECRETS = ("alices-key", "team-token", "hunter2", '"tok"', "mistral-key", "bobs-key")


def test_every_value_has_its_source(desk: Desk):
    desk.configure(CONFIG)
    found = json.loads(
        desk.good(
            "config", "--json", MISTRAL_API_KEY="mistral-key", PROXY_STOP_AFTER_TOOLS="on", TOOLWIRE_LOG_LEVEL="debug"
        )
    )
    assert found["file"] == str(desk.config)
    settings = found["settings"]
    assert settings["server"]["port"] == {"value": 8808, "source": "file"}
    assert settings["server"]["host"] == {"value": "127.0.0.1", "source": "default"}
    assert settings["tools"]["stop_after"] == {"value": True, "source": "PROXY_STOP_AFTER_TOOLS"}
    assert settings["debug"]["level"] == {"value": "debug", "source": "TOOLWIRE_LOG_LEVEL"}
    first, second, last = settings["backends"]
    assert first["preset"] == {"value": "mistral", "source": "file"}
    assert first["base_url"] == {"value": "https://api.mistral.ai/v1", "source": "preset mistral"}
    assert first["profile"] == {
        "value": {"id_exact": 9, "reasoning": "drop", "usage": False, "strict": False},
        "source": "file, preset mistral",
    }
    assert second["kind"] == {"value": "codex", "source": "file"}
    assert last["name"] == {"value": "demo", "source": "built in"}


def test_what_was_found_says_why_it_is_there(desk: Desk):
    found = json.loads(desk.good("config", "--json", OPENAI_API_KEY="k"))
    assert found["file"] is None
    assert found["settings"]["backends"][0]["name"] == {"value": "openai", "source": "found: OPENAI_API_KEY is set"}


def test_no_secret_is_shown_in_either_form(desk: Desk):
    desk.configure(CONFIG + '[[keys]]\nname = "bob"\nkey_env = "BOB"\n')
    for options in ((), ("--json",)):
        shown = desk.good("config", *options, MISTRAL_API_KEY="mistral-key", BOB="bobs-key")
        assert [secret for secret in SECRETS if secret in shown] == []
        assert all(each in shown for each in ("x-team", "***", "http://x/v1", "MINE", "MISTRAL_API_KEY", "BOB"))


def test_the_text_is_a_settings_file_with_comments(desk: Desk):
    desk.configure(CONFIG)
    text = desk.good("config", MISTRAL_API_KEY="k")
    assert text.startswith(f"# {desk.config}\n\n[server]\n")
    assert "port = 8808 " in text
    read = tomllib.loads(text)
    assert read["backends"][0]["name"] == "mistral"
    # What it shows can be used as it is.
    again = desk.folder / "again.toml"
    again.write_text(text.replace('"***"', '"hidden"'))
    assert tomllib.loads(desk.good("config", "-c", str(again), MISTRAL_API_KEY="k")) == read


def test_the_path_is_printed_alone_and_also_before_there_is_a_file(desk: Desk):
    done = desk.run("config", "path")
    assert (done.returncode, done.stdout) == (0, f"{desk.config}\n")
    assert done.stderr == "toolwire: there is no such file yet; toolwire init writes one\n"
    desk.configure("")
    assert desk.run("config", "path").stderr == ""
    assert desk.good("config", "path", "-c", "other.toml") == f"{desk.folder / 'other.toml'}\n"


def test_the_directory_is_not_read(desk: Desk):
    (desk.folder / "toolwire.toml").write_text("[server]\nport = 1\n")
    assert json.loads(desk.good("config", "--json"))["settings"]["server"]["port"]["value"] == 8787
