"""`toolwire env`: what a shell evaluates, and nothing else on stdout."""

import stat
import subprocess

import pytest

from tests.commands.desk import Desk
from toolwire.cli.clients import PROGRAMS

LOCAL = '[[backends]]\npreset = "ollama"\nmodels = ["qwen3"]\ncontext_windows = { "*" = 40960 }\n'
HINT = "toolwire: no gateway answers at http://127.0.0.1:8807 yet: toolwire serve starts it\n"


@pytest.fixture
def desk(desk: Desk) -> Desk:
    desk.configure(f"[server]\nport = 8807\n{LOCAL}")
    return desk


def evaluated(desk: Desk, lines: str, then: str, **more: str) -> str:
    """What a shell prints that has evaluated these lines."""
    done = subprocess.run(
        ["bash", "-c", f'eval "$LINES_"; {then}'],
        env={**desk.environment, "LINES_": lines, **more},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout


def test_claude_gets_its_address_its_models_and_their_window(desk: Desk):
    done = desk.run("env", "claude")
    assert done.stderr == HINT
    variables = dict(line.removeprefix("export ").split("=", 1) for line in done.stdout.splitlines())
    assert variables == {
        "ANTHROPIC_BASE_URL": "http://127.0.0.1:8807",
        "ANTHROPIC_AUTH_TOKEN": "unused",
        "ANTHROPIC_API_KEY": "''",
        "ANTHROPIC_MODEL": "qwen3",
        "ANTHROPIC_DEFAULT_HAIKU_MODEL": "qwen3",
        "ANTHROPIC_DEFAULT_SONNET_MODEL": "qwen3",
        "ANTHROPIC_DEFAULT_OPUS_MODEL": "qwen3",
        "ANTHROPIC_DEFAULT_FABLE_MODEL": "qwen3",
        "CLAUDE_CODE_MAX_CONTEXT_TOKENS": "40960",
        "CLAUDE_CODE_ENABLE_GATEWAY_MODEL_DISCOVERY": "1",
        "CLAUDE_CODE_PROVIDER_MANAGED_BY_HOST": "1",
        "ENABLE_TOOL_SEARCH": "true",
    }


def test_what_leads_claude_elsewhere_is_unset(desk: Desk):
    lines = desk.good("env", "claude", CLAUDE_CODE_USE_BEDROCK="1", CLAUDE_CODE_SUBAGENT_MODEL="claude-x")
    assert "export CLAUDE_CODE_USE_BEDROCK=''\n" in lines
    assert "export CLAUDE_CODE_SUBAGENT_MODEL=qwen3\n" in lines


def test_a_choice_about_tool_search_stays(desk: Desk):
    assert "export ENABLE_TOOL_SEARCH=auto:5\n" in desk.good("env", "claude", ENABLE_TOOL_SEARCH="auto:5")


def test_the_libraries_get_address_and_key(desk: Desk):
    assert desk.good("env", "openai") == (
        "export OPENAI_BASE_URL=http://127.0.0.1:8807/v1\nexport OPENAI_API_KEY=unused\n"
    )
    assert desk.good("env", "anthropic", "-p", "9000") == (
        "export ANTHROPIC_BASE_URL=http://127.0.0.1:9000\nexport ANTHROPIC_API_KEY=unused\n"
    )
    assert desk.good("env", "google") == (
        "export GOOGLE_GEMINI_BASE_URL=http://127.0.0.1:8807\nexport GEMINI_API_KEY=unused\nexport GOOGLE_API_KEY=''\n"
    )


def test_codex_is_told_by_arguments_because_it_has_no_variable(desk: Desk):
    lines = desk.good("env", "codex", "--model", "demo")
    fake = 'codex_() { printf "%s\\n" "$@"; }; command() { shift; codex_ "$@"; }; codex exec "two words"; echo $TOOLWIRE_KEY'
    said = evaluated(desk, lines, fake).splitlines()
    assert said[-3:] == ["exec", "two words", "unused"]
    settings = dict(word.split("=", 1) for word in said[:-3] if word != "-c")
    assert settings == {
        "model_provider": '"toolwire"',
        "model_providers.toolwire.name": '"Toolwire"',
        "model_providers.toolwire.base_url": '"http://127.0.0.1:8807/v1"',
        "model_providers.toolwire.wire_api": '"responses"',
        "model_providers.toolwire.env_key": '"TOOLWIRE_KEY"',
        "model_providers.toolwire.supports_websockets": "true",
        "model": '"demo"',
    }


def test_a_key_in_a_variable_is_not_printed(desk: Desk):
    desk.configure(f'[[keys]]\nname = "me"\nkey_env = "MY_KEY"\n{LOCAL}')
    lines = desk.good("env", "claude", MY_KEY="it's secret")
    assert 'export ANTHROPIC_AUTH_TOKEN="$MY_KEY"\n' in lines
    assert "secret" not in lines
    assert evaluated(desk, lines, "echo $ANTHROPIC_AUTH_TOKEN", MY_KEY="it's secret") == "it's secret\n"


def test_a_key_that_stands_in_the_file_is_quoted(desk: Desk):
    desk.configure(f'[[keys]]\nname = "me"\nkey = "it\'s $HOME"\n{LOCAL}')
    assert evaluated(desk, desk.good("env", "openai"), "echo $OPENAI_API_KEY") == "it's $HOME\n"


@pytest.mark.parametrize(
    ("url", "variable"),
    [("https://api.openai.com/v1", "OPENAI_API_KEY"), ("https://api.openai.com.example.net/v1", "")],
)
def test_the_users_own_key_goes_to_its_own_server_only(desk: Desk, url: str, variable: str):
    desk.configure(f'[[backends]]\nname = "a"\nkind = "responses"\nbase_url = "{url}"\nmodels = ["gpt-5"]\n')
    lines = desk.good("env", "codex", OPENAI_API_KEY="sk-mine")
    assert lines.splitlines()[0] == (f'export TOOLWIRE_KEY="${variable}"' if variable else "export TOOLWIRE_KEY=unused")


def test_the_models_of_a_vendor_are_left_to_its_own_program(desk: Desk):
    desk.configure('[[backends]]\npreset = "anthropic"\n')
    assert "MODEL=" not in desk.good("env", "claude", ANTHROPIC_API_KEY="k")


def test_other_shells_have_their_own_words(desk: Desk):
    desk.configure(f'[[keys]]\nname = "me"\nkey = "it\'s"\n{LOCAL}')
    assert desk.good("env", "openai", "--shell", "fish").splitlines()[1] == "set -gx OPENAI_API_KEY 'it\\'s'"
    assert desk.good("env", "openai", "-s", "powershell").splitlines()[1] == "$env:OPENAI_API_KEY = 'it''s'"
    assert desk.good("env", "openai", SHELL="/usr/bin/fish").startswith("set -gx OPENAI_BASE_URL ")
    assert desk.good("env", "codex", "-s", "fish").splitlines()[1].endswith(" $argv; end")
    assert desk.good("env", "codex", "-s", "powershell").splitlines()[1].endswith(" @args }")


@pytest.mark.parametrize("name", [name for name in PROGRAMS if name not in ("claude", "codex")])
def test_every_other_program_has_variables_which_may_name_a_file_without_a_key(desk: Desk, name: str):
    desk.configure(f'[server]\nport = 8807\n[[keys]]\nname = "me"\nkey_env = "TEAM"\n{LOCAL}')
    lines = desk.good("env", name, TEAM="team-key")
    folder = desk.home / ".local" / "state" / "toolwire" / "clients" / name
    files = [path for path in folder.rglob("*") if path.is_file()]
    said = lines + "".join(path.read_text() for path in files)
    assert "http://127.0.0.1:8807" in said
    assert "qwen3" in said
    assert "team-key" not in said
    assert '="$TEAM"\n' in lines
    assert bool(files) == (str(folder) in lines)
    assert {stat.S_IMODE(path.stat().st_mode) for path in files} <= {0o600}
