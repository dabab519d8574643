"""`toolwire init`: a file that only its owner may read, that works, and that holds no key."""

import json
import re
import stat
import tomllib
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.commands.desk import Desk
from tests.commands.server import Answer, Server, Silence
from tests.support.upstream import Upstream
from toolwire.config.presets import PRESETS

ADDRESS = "https://me.openai.azure.com/openai/v1"


def address_of(name: str) -> str:
    """An address of the form that a preset needs, if it does."""
    return re.sub("[A-Z]{3,}", "me", PRESETS[name].address)


def backends(desk: Desk, path: Path) -> list[dict[str, object]]:
    """What the commands make of a file."""
    variables = {preset.api_key_env: "k" for preset in PRESETS.values() if preset.api_key_env}
    found = json.loads(desk.good("config", "--json", "-c", str(path), **variables))["settings"]["backends"]
    return [{key: each["value"] for key, each in backend.items()} for backend in found]


@pytest.mark.parametrize("name", PRESETS)
def test_a_script_gets_a_file_for_every_preset(desk: Desk, name: str):
    more = ("--base-url", address_of(name)) if PRESETS[name].address else ()
    said = desk.good("init", "--preset", name, "--yes", *more)
    assert f"Wrote {desk.config}\n" in said
    assert stat.S_IMODE(desk.config.stat().st_mode) == 0o600
    assert tomllib.loads(desk.config.read_text())["backends"][0]["preset"] == name
    assert backends(desk, desk.config)[0]["base_url"] == (PRESETS[name].base_url or address_of(name))


def test_answers_may_come_from_a_pipe(desk: Desk):
    answers = "deepseek, 13\n\ndeepseek-chat\n\nqwen3, gemma3\n"
    said = desk.good("init", stdin=answers)
    assert "   5  deepseek    DeepSeek\n" in said
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
    desk.good("init", "--yes", "--overwrite", "--preset", "deepseek", "--key-env", "MY_COMPANY_API_KEY")
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
        "toolwire: --model, --base-url and --key-env go with exactly one --preset or --url\n",
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


# Any other server

KEY = "sk-0123456789abcdef"
REFUSED = (401, "application/json", b'{"error": {"message": "no key"}}')
NO_MODEL = (400, "application/json", b'{"error": {"message": "model is missing"}}')


class OtherServer:
    """A server that speaks some protocols under some path, and remembers what it was asked."""

    def __init__(self, *operations: str, path: str = "/v1", key: str = "", owner: str = "me") -> None:
        self._operations, self._path, self._key = operations, path, key
        self._models = json.dumps({"data": [{"id": name, "owned_by": owner} for name in ("a", "b")]}).encode()
        self.keys: set[str] = set()

    def __call__(self, method: str, path: str, headers: Mapping[str, str]) -> Answer:
        key = headers.get("authorization", headers.get("x-api-key", "")).removeprefix("Bearer ")
        self.keys.add(key)
        if path.partition("?")[0] not in (f"{self._path}{each}" for each in (*self._operations, "/models")):
            return 404, "application/json", b"{}"
        if self._key and key != self._key:
            return REFUSED
        return (200, "application/json", self._models) if method == "GET" else NO_MODEL


CHAT, RESPONSES, MESSAGES = "/chat/completions", "/responses", "/messages"


def entry_of(desk: Desk) -> dict[str, object]:
    [entry] = tomllib.loads(desk.config.read_text())["backends"]
    return entry


@pytest.mark.parametrize(
    ("operations", "kind"),
    [((CHAT,), "chat"), ((RESPONSES,), "responses"), ((MESSAGES,), "messages"), ((MESSAGES, RESPONSES, CHAT), "chat")],
)
def test_a_server_is_asked_what_it_speaks_and_which_models_it_has(desk: Desk, operations: tuple[str, ...], kind: str):
    with Server(OtherServer(*operations)) as server:
        desk.good("init", "--url", server.url, "--yes")
        expected = {"name": "local", "kind": kind, "base_url": f"{server.url}/v1", "models": ["a", "b"]}
        assert entry_of(desk) == expected
        assert "it answers, with 2 models" in desk.good("doctor")


@pytest.mark.parametrize("path", ["", "/v1", "/api/v1", "/some/where"])
def test_the_address_is_found_near_the_given_one(desk: Desk, path: str):
    with Server(OtherServer(CHAT, path=path)) as server:
        given = f"{server.url}{path}/chat/completions" if path == "/some/where" else server.url
        desk.good("init", "--url", given, "--yes", "--overwrite")
        assert entry_of(desk)["base_url"] == f"{server.url}{path}"


def test_a_server_that_says_what_it_is_gets_its_preset(desk: Desk):
    with Server(OtherServer(CHAT, RESPONSES, owner="vllm")) as server:
        desk.good("init", "--url", server.url, "--yes")
        assert entry_of(desk) == {"preset": "vllm", "base_url": f"{server.url}/v1", "models": ["a", "b"]}


def test_a_key_is_named_by_its_variable_and_goes_only_to_that_server(desk: Desk):
    with Server(OtherServer(CHAT, key=KEY)) as server:
        said = desk.good("init", "--url", server.url, "--key-env", "MY_KEY", "--yes", MY_KEY=KEY)
        assert f"{server.url}/v1: Chat Completions; 2 models\n" in said
        assert entry_of(desk)["api_key_env"] == "MY_KEY"
        assert KEY not in said + desk.config.read_text()


def test_a_key_that_is_not_set_yet_is_named_too(desk: Desk):
    with Server(OtherServer(CHAT, key=KEY)) as server:
        said = desk.good("init", "--url", server.url, "--yes")
        assert "  a key is needed" in said.replace(f"{server.url}/v1:", "")
        assert "  export LOCAL_API_KEY=…" in said
        assert entry_of(desk) == {
            "name": "local",
            "kind": "chat",
            "base_url": f"{server.url}/v1",
            "api_key_env": "LOCAL_API_KEY",
        }


def test_a_key_that_is_refused_is_reported(desk: Desk):
    with Server(OtherServer(CHAT, key=KEY)) as server:
        done = desk.run("init", "--url", server.url, "--key-env", "MY_KEY", "--yes", MY_KEY="wrong-one")
        assert done.stderr == "toolwire: The variable that holds its key: the key in MY_KEY is refused\n"
        assert done.returncode == 2
        assert not desk.config.exists()
        said = desk.good("init", stdin=f"{server.url}\nMY_KEY\nGOOD\n\n", MY_KEY="wrong-one", GOOD=KEY)
        assert "  the key in MY_KEY is refused\n" in said
        assert entry_of(desk)["api_key_env"] == "GOOD"


def test_a_key_is_not_sent_to_a_server_that_needs_none(desk: Desk):
    other = OtherServer(CHAT)
    with Server(other) as server:
        desk.good("init", "--url", server.url, "--key-env", "MY_KEY", "--yes", MY_KEY=KEY)
    assert other.keys == {""}


def test_a_redirect_is_reported_and_not_followed(desk: Desk):
    elsewhere = OtherServer(CHAT)
    with Server(elsewhere) as target:

        def redirect(method: str, path: str, headers: Mapping[str, str]) -> Answer:
            return 307, "text/plain", b"", {"location": f"{target.url}{path}"}

        with Server(redirect) as server:
            done = desk.run("init", "--url", server.url, "--key-env", "MY_KEY", "--yes", MY_KEY=KEY)
            where = f"status 307, to {target.url}/v1/chat/completions"
            assert done.stderr == f"toolwire: Its address: {server.url}/v1: no known API answers here ({where})\n"
    assert elsewhere.keys == set()


@pytest.mark.parametrize(
    ("answer", "fault"),
    [
        ((404, "text/html", b"<html>"), "no known API answers here (status 404)"),
        ((200, "text/html", b"<html>"), "no known API answers here (status 200)"),
        ((200, "application/json", b'{"error":"Unexpected endpoint"}'), "no known API answers here (status 200)"),
        ((503, "application/json", b'{"error":"loading"}'), "it answers with status 503; try again later"),
    ],
)
def test_a_server_without_a_known_api_is_reported(desk: Desk, answer: Answer, fault: str):
    with Server(lambda method, path, headers: answer) as server:
        done = desk.run("init", "--url", server.url, "--yes")
    assert (done.returncode, done.stderr) == (2, f"toolwire: Its address: {server.url}/v1: {fault}\n")
    assert not desk.config.exists()


def test_a_server_that_does_not_answer_is_given_up(desk: Desk):
    desk.give_patience(1)
    with Silence() as silence, Server(silence) as server:
        done = desk.run("init", "--url", server.url, "--yes")
    assert done.stderr.startswith(f"toolwire: Its address: {server.url}/v1: no answer in 1 seconds")
    done = desk.run("init", "--url", "127.0.0.1:9", "--yes")
    assert "http://127.0.0.1:9/v1: it cannot be reached: connection refused." in done.stderr


def test_an_empty_address_is_no_address(desk: Desk):
    done = desk.run("init", "--url", "", "--yes")
    assert (done.returncode, desk.config.exists()) == (2, False)


def test_an_address_with_a_secret_in_it_is_not_taken(desk: Desk):
    for url in ("https://me:secret@example.com/v1", "https://example.com/v1?key=secret"):
        done = desk.run("init", "--url", url, "--yes")
        assert (done.returncode, "secret" in done.stderr) == (2, False)


def test_another_server_is_offered_beside_the_presets(desk: Desk):
    with Server(OtherServer(RESPONSES, CHAT)) as first, Server(OtherServer(MESSAGES)) as second:
        answers = f"other, {second.url}\n127.0.0.1:9\n127.0.0.1:{first.port}\nnothing\nresponses\na\n\n"
        said = desk.good("init", stdin=answers)
        assert "  other       Any other server; you can also type its address here\n" in said
        assert "connection refused" in said
        assert "Its API (chat, responses) [chat]: \n  one of chat, responses\n" in said
        one, two, _ = backends(desk, desk.config)
        assert (one["name"], one["kind"], one["models"]) == ("local", "responses", ["a"])
        assert (two["name"], two["kind"], two["models"]) == ("local-2", "messages", ["a", "b"])
        assert (one["base_url"], two["base_url"]) == (f"{first.url}/v1", f"{second.url}/v1")


def test_the_address_goes_without_a_second_one(desk: Desk):
    done = desk.run("init", "--url", "http://127.0.0.1:9", "--base-url", "http://127.0.0.1:8", "--yes")
    assert done.stderr == "toolwire: --base-url needs --preset; --url is already an address\n"
