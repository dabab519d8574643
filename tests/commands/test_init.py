"""`toolwire init`: a file that only its owner may read, that works, and that holds no key."""

import json
import stat
import tomllib
from pathlib import Path

import pytest

from tests.commands.desk import Desk
from tests.support.upstream import Upstream
from toolwire.config.presets import PRESETS

ADDRESS = "https://me.openai.azure.com/openai/v1"


def backends(desk: Desk, path: Path) -> list[dict[str, object]]:
    """What the commands make of a file."""
    variables = {preset.api_key_env: "k" for preset in PRESETS.values() if preset.api_key_env}
    found = json.loads(desk.good("config", "--json", "-c", str(path), **variables))["settings"]["backends"]
    return [{key: each["value"] for key, each in backend.items()} for backend in found]


@pytest.mark.parametrize("name", PRESETS)
def test_a_script_gets_a_file_for_every_preset(desk: Desk, name: str):
    more = ("--base-url", ADDRESS) if PRESETS[name].address else ()
    said = desk.good("init", "--preset", name, "--yes", *more)
    assert f"Written: {desk.config}\n" in said
    assert stat.S_IMODE(desk.config.stat().st_mode) == 0o600
    assert tomllib.loads(desk.config.read_text())["backends"][0]["preset"] == name
    assert backends(desk, desk.config)[0]["base_url"] == (PRESETS[name].base_url or ADDRESS)


def test_answers_may_come_from_a_pipe(desk: Desk):
    answers = "deepseek, 12\n\ndeepseek-chat\n\nqwen3, gemma3\n"
    said = desk.good("init", stdin=answers)
    assert "   4  deepseek    DeepSeek\n" in said
    assert "  export DEEPSEEK_API_KEY=…  # " in said
    assert "  toolwire launch claude     # " in said
    first, second, _ = backends(desk, desk.config)
    assert (first["name"], first["models"]) == ("deepseek", ["deepseek-chat", "deepseek-*"])
    assert (second["name"], second["models"]) == ("ollama", ["qwen3", "gemma3"])


def test_without_answers_the_defaults_count(desk: Desk):
    desk.good("init", DEEPSEEK_API_KEY="k")
    assert [each["name"] for each in backends(desk, desk.config)] == ["deepseek", "demo"]
    desk.good("init", "--overwrite")
    assert "backends" not in tomllib.loads(desk.config.read_text())


def test_a_file_that_is_there_stays_unless_somebody_says_so(desk: Desk):
    desk.configure("# mine\n")
    stays = f"toolwire: {desk.config} already exists and was not changed; --overwrite replaces it\n"
    for arguments, answer in ((("--yes",), ""), ((), ""), ((), "n\n")):
        done = desk.run("init", *arguments, stdin=answer)
        assert (done.returncode, done.stderr) == (2, stays)
    assert desk.config.read_text() == "# mine\n"
    desk.good("init", stdin="y\nnone\n")
    assert "# mine" not in desk.config.read_text()


def test_a_link_is_not_followed(desk: Desk, tmp_path: Path):
    elsewhere = tmp_path / "precious"
    elsewhere.write_text("keep")
    desk.config.symlink_to(elsewhere)
    assert desk.run("init", "--yes", "--overwrite").returncode == 2
    assert elsewhere.read_text() == "keep"


def test_a_key_is_not_taken_for_a_variable_and_is_not_written(desk: Desk):
    key = "sk-0123456789abcdef"
    said = desk.good("init", stdin=f"deepseek\n{key}\nMY_KEY\n\n")
    assert "this is not the name of a variable" in said
    assert key not in said + desk.config.read_text()
    assert tomllib.loads(desk.config.read_text())["backends"] == [{"preset": "deepseek", "api_key_env": "MY_KEY"}]
    done = desk.run("init", "--yes", "--overwrite", "--preset", "deepseek", "--key-env", key)
    assert (done.returncode, key in done.stderr) == (2, False)


def test_the_models_of_a_server_on_this_machine_are_offered(desk: Desk, upstream: Upstream):
    desk.good("init", stdin=f"vllm\n{upstream.url}\n\n")
    assert backends(desk, desk.config)[0]["models"] == ["gpt-5", "gpt-5-mini", "tts-1"]


def test_a_wrong_answer_is_asked_again(desk: Desk):
    said = desk.good("init", stdin=f"azur\n99\nazure\nnot an address\n{ADDRESS}\n\ngpt-5\n")
    assert "  there is no preset 'azur'; did you mean azure?\n" in said
    assert "  'not an address' is not an address: it has a space\n" in said
    assert backends(desk, desk.config)[0]["base_url"] == ADDRESS


def test_options_for_one_server_need_one(desk: Desk):
    done = desk.run("init", "--yes", "--preset", "groq", "--preset", "xai", "--model", "x")
    assert (done.returncode, done.stderr) == (
        2,
        "toolwire: --model, --base-url and --key-env go with exactly one --preset\n",
    )
    done = desk.run("init", "--yes", "--preset", "azure")
    assert (
        done.stderr
        == f"toolwire: --base-url: the preset azure needs an address of the form {PRESETS['azure'].address}\n"
    )
    assert not desk.config.exists()


def test_another_file_may_be_named(desk: Desk):
    desk.good("init", "--yes", "--preset", "groq", "--model", "a/b", "-c", "sub/mine.toml")
    assert backends(desk, desk.folder / "sub" / "mine.toml")[0]["models"] == ["a/b"]
