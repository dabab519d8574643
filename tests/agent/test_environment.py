"""What processes inherit: none of our secrets, unless a list says so."""

import asyncio
import json
from functools import partial
from pathlib import Path

import pytest

from tests.agent.stage import end_of, runner_on
from tests.support.app_server import Workers, say
from tests.support.gateway import Gateway
from toolwire.agent import AgentConfig
from toolwire.agent.events import CallEnded
from toolwire.agent.tools import builtin
from toolwire.agent.tools.shell import local_shell
from toolwire.config.settings import DEMO, AgentTools, Backend, Key, Settings
from toolwire.turns.tools.call import LocalShellPayload, ToolCall
from toolwire.turns.tools.registry import Context
from toolwire.upstream.credentials import inherit_environment

SECRETS = {
    "OPENAI_API_KEY": "1",
    "github_token": "2",
    "My_Secret_Thing": "3",
    "PGPASSWORD": "4",
    "GOOGLE_APPLICATION_CREDENTIALS": "5",
    "AWS_ACCESS_KEY_ID": "6",
}
"""Known by their names, in any case."""
NAMED = {"PROVIDER": "7", "ALICE": "8", "MINE": "9", "OTHER": "10"}
"""Known because a setting names them."""
HARMLESS = {"EDITOR": "vi", "LANG": "C.UTF-8", "DATABASE": "x"}

SETTINGS = Settings(
    keys=(Key("alice", key_env="ALICE"),),
    agent=AgentTools(inherit=("github_token", "MINE")),
    backends=(
        DEMO,
        Backend("a", "chat", base_url="http://127.0.0.1:1", api_key_env="PROVIDER"),
        Backend("b", "codex", overrides={"model_providers": {"x": {"env_key": "OTHER"}, "y": {"env_key": "MINE"}}}),
    ),
)


@pytest.fixture(autouse=True)
def variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (SECRETS | NAMED | HARMLESS).items():
        monkeypatch.setenv(name, value)


def test_one_place_decides() -> None:
    environment = {"PATH": "/bin", **SECRETS, **NAMED, **HARMLESS}
    assert inherit_environment(SETTINGS.secret_variables, ("PGPASSWORD", "ALICE"), environment) == {
        "PATH": "/bin", "PGPASSWORD": "4", "ALICE": "8", **HARMLESS,
    }  # fmt: skip
    assert inherit_environment(environment=environment) == {"PATH": "/bin", **NAMED, **HARMLESS}


@pytest.mark.parametrize(
    ("name", "prompt"), [("bash", "Run the bash command `{}`"), ("exec", "Run commands: `{}`")], ids=["bash", "exec"]
)
def test_commands_of_an_agent_get_no_secrets(name: str, prompt: str, tmp_path: Path) -> None:
    out = tmp_path / "names"
    line = f"env -0 > {out}"

    async def main() -> None:
        config = AgentConfig(approve="never")
        async with (
            builtin([name]) as built,
            runner_on("demo", tools=built.tools, config=config, settings=SETTINGS, cwd=tmp_path) as agent,
        ):
            events = [event async for event in agent.stream(prompt.format(line))]
            assert [event.failed for event in events if isinstance(event, CallEnded)] == [False], events

    asyncio.run(main())
    found = {each.partition("=")[0] for each in out.read_text().split("\0")}
    allowed = {"github_token", "MINE"}
    assert found & {*SECRETS, *NAMED} == allowed
    assert found >= {*HARMLESS, "PATH", "TERM"}


def test_a_local_shell_gets_no_secrets(tmp_path: Path) -> None:
    call = ToolCall("local_shell", "1", LocalShellPayload(("env",), env={"OTHER_KEY": "of the call"}))
    context = Context(tmp_path, print, inherit=partial(inherit_environment, SETTINGS.secret_variables, ("MINE",)))
    result = asyncio.run(local_shell.run(call, context))
    found = {line.partition("=")[0] for line in result.text.splitlines()}
    assert found & {*SECRETS, *NAMED, "OTHER_KEY"} == {"MINE", "OTHER_KEY"}


def test_a_search_gets_no_secrets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "bin/rg"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\nenv > {tmp_path}/names\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:/usr/bin:/bin")

    async def main() -> None:
        tools = builtin(["grep"]).tools
        async with runner_on("demo", tools=tools, settings=SETTINGS, cwd=tmp_path) as agent:
            await end_of(agent, "Grep for `x`")

    asyncio.run(main())
    found = {line.partition("=")[0] for line in (tmp_path / "names").read_text().splitlines()}
    assert found & {*SECRETS, *NAMED} == {"github_token", "MINE"}


@pytest.mark.parametrize(
    ("fields", "kept"),
    [
        ({}, set[str]()),
        ({"api_key_env": "PROVIDER", "base_url": "http://127.0.0.1:1/v1"}, {"PROVIDER"}),
        ({"overrides": {"model_providers": {"x": {"env_key": "OPENAI_API_KEY"}}}}, {"OPENAI_API_KEY"}),
        ({"inherit": ["PGPASSWORD"]}, {"PGPASSWORD"}),
    ],
    ids=["nothing", "its own key", "a provider's key", "a list"],
)
def test_a_codex_worker_gets_its_own_key_only(tmp_path: Path, fields: dict[str, object], kept: set[str]) -> None:
    workers = Workers(tmp_path)
    model = workers.script(say("hello"))
    other = '[[backends]]\nname = "other"\nkind = "chat"\nbase_url = "http://127.0.0.1:1"\napi_key_env = "OTHER"\n'
    key = '[[keys]]\nname = "alice"\nkey_env = "ALICE"\n'
    gateway = Gateway(tmp_path, other + workers.backend(**fields) + key, OPENAI_API_KEY="1")
    try:
        assert model
        (started,) = workers.wait_for(lambda rows: rows.of("start")).of("start")
    finally:
        gateway.stop()
    named = {"OTHER", "ALICE", "PROVIDER"} if "api_key_env" in fields else {"OTHER", "ALICE"}
    assert {*started["variables"]} & {*SECRETS, *named} == kept
    assert {*started["variables"]} >= {"PATH", "EDITOR"}


def test_a_server_of_mcp_gets_what_its_entry_says(tmp_path: Path) -> None:
    script = f"env > {tmp_path}/names"
    entry = {"command": "sh", "args": ["-c", script], "env": {"WANTED_TOKEN": "${OPENAI_API_KEY}"}}
    (tmp_path / "mcp.json").write_text(json.dumps({"mcpServers": {"s": entry}}))
    gateway = Gateway(tmp_path, '[gateway_tools]\nmcp = "mcp.json"\n', OPENAI_API_KEY="1")
    names = tmp_path / "names"
    gateway.wait_until(lambda: names.exists() and "PATH" in names.read_text())
    gateway.stop()
    found = {line.partition("=")[0] for line in names.read_text().splitlines()}
    assert "WANTED_TOKEN" in found
    assert not found & {*SECRETS, *NAMED}


def test_a_library_asks_by_default() -> None:
    assert AgentConfig().approve == "on-write"
