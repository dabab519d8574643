"""What people get wrong, and the exact line that tells them. Exit code 2, and nothing is started."""

import pytest

from tests.commands.desk import Desk

BACKEND = '[[backends]]\nname = "local"\nkind = "chat"\nbase_url = "http://127.0.0.1:1/v1"\n'

CONFIGURATIONS = {
    "a typo in a key": (
        "[server]\nprot = 9000\n",
        "server.prot: unknown key; did you mean port?",
    ),
    "a key outside of its table": (
        "port = 9000\n",
        "port: unknown key; it belongs in [server]",
    ),
    "a number in quotes": (
        '[server]\nport = "9000"\n',
        "server.port: '9000' is not a whole number",
    ),
    "single brackets": (
        '[backends]\nname = "a"\n',
        "backends: write [[backends]], with two brackets: there can be several",
    ),
    "the name of a table in the singular": (
        '[[backend]]\nname = "a"\n',
        "backend: unknown key; did you mean backends?",
    ),
    "a key in the file": (
        BACKEND + 'api_key = "sk-live-0123456789abcdef"\n',
        'backends[0] (local).api_key: unknown key; write api_key_env = "NAME", the variable that holds the key;'
        " keys do not belong in this file",
    ),
    "a key instead of a variable": (
        BACKEND + 'api_key_env = "sk-live-0123456789abcdef"\n',
        "backends[0] (local).api_key_env: this is not the name of a variable; write the name of the variable that holds"
        " the key",
    ),
    "a kind that there is not": (
        '[[backends]]\nname = "a"\nkind = "message"\n',
        "backends[0] (a).kind: 'message' is not one of chat, codex, demo, gemini, messages, replay, responses;"
        " did you mean messages?",
    ),
    "neither kind nor preset": (
        '[[backends]]\nname = "a"\nbase_url = "http://127.0.0.1:1/v1"\n',
        "backends[0] (a).kind: it is missing; write one of chat, codex, demo, gemini, messages, replay, responses, or a preset",
    ),
    "a typo in a preset": (
        '[[backends]]\npreset = "deepsek"\n',
        "backends[0].preset: there is no preset 'deepsek'; did you mean deepseek?",
    ),
    "a preset by its vendor": (
        '[[backends]]\npreset = "moonshot"\n',
        "backends[0].preset: there is no preset 'moonshot'; did you mean kimi?",
    ),
    "a preset that needs an address": (
        '[[backends]]\npreset = "azure"\n',
        "backends[0] (azure).base_url: the preset azure needs an address of the form https://RESOURCE.openai.azure.com/openai/v1",
    ),
    "an address with a placeholder": (
        '[[backends]]\npreset = "bedrock"\nbase_url = "https://bedrock-runtime.REGION.amazonaws.com/openai/v1"\n',
        "backends[0] (bedrock).base_url: write your own region for REGION",
    ),
    "an address with its operation": (
        '[[backends]]\nname = "a"\nkind = "chat"\nbase_url = "http://127.0.0.1:1/v1/chat/completions"\n',
        "backends[0] (a).base_url: it ends in an operation; write 'http://127.0.0.1:1/v1'",
    ),
    "an address with a query": (
        '[[backends]]\nname = "a"\nkind = "chat"\nbase_url = "http://127.0.0.1:1/v1?api-version=1"\n',
        'backends[0] (a).base_url: it has a query; write that as query = { NAME = "VALUE" }',
    ),
    "a typo in a profile": (
        BACKEND + "profile = { max_token = 1 }\n",
        "backends[0] (local).profile.max_token: unknown key; did you mean max_tokens?",
    ),
    "a value that a profile does not have": (
        BACKEND + 'profile = { content_beside_calls = "" }\n',
        "backends[0] (local).profile.content_beside_calls: '' is not one of empty, null, omit",
    ),
    "a glob that is not closed": (
        BACKEND + 'models = ["gpt-[45"]\n',
        "backends[0] (local).models: 'gpt-[45' matches no model: a [ has no ]",
    ),
    "a range that runs backwards": (
        BACKEND + 'models = ["gpt-[9-4]"]\n',
        "backends[0] (local).models: 'gpt-[9-4]' matches no model: 9-4 is not a range",
    ),
    "an alias for several models": (
        BACKEND + 'aliases = { fast = "gpt-*" }\n',
        "backends[0] (local).aliases: 'fast' = 'gpt-*': an alias is one name for one model, without * or ?",
    ),
    "one model instead of a list": (
        BACKEND + 'models = "qwen3"\n',
        "backends[0] (local).models: 'qwen3' is not a list in brackets",
    ),
    "two backends of one name": (
        BACKEND + BACKEND,
        "backends[1] (local): another backend has this name",
    ),
    "a level that there is not": (
        '[debug]\nlevel = "verbose"\n',
        "debug.level: 'verbose' is not one of debug, error, info, warning",
    ),
}


@pytest.mark.parametrize(("text", "said"), CONFIGURATIONS.values(), ids=CONFIGURATIONS)
def test_a_configuration_that_is_wrong(desk: Desk, text: str, said: str):
    desk.configure(text)
    done = desk.run("config")
    assert (done.returncode, done.stdout, done.stderr) == (2, "", f"toolwire: {desk.config}: {said}\n")


def test_every_command_says_the_same(desk: Desk):
    desk.configure(CONFIGURATIONS["a typo in a key"][0])
    said = f"toolwire: {desk.config}: {CONFIGURATIONS['a typo in a key'][1]}\n"
    for command in (("serve",), ("run", "Hi"), ("models",), ("env", "claude"), ("launch", "claude"), ("config",)):
        done = desk.run(*command)
        assert (done.returncode, done.stdout, done.stderr) == (2, "", said), command


COMMANDS = {
    "a typo in a command": (
        ("serv",),
        "No such command 'serv'. Did you mean 'serve'? See toolwire --help",
    ),
    "a typo in an option": (
        ("serve", "--prot", "1"),
        "No such option '--prot'. (Did you mean one of: '--host', '--port'?) See toolwire serve --help",
    ),
    "a configuration that is not there": (
        ("models", "-c", "mine.toml"),
        "mine.toml: there is no such file; toolwire init writes one",
    ),
    "a program that cannot be launched": (
        ("launch", "claud"),
        "there is no command claud; did you mean claude?",
    ),
    "a program that is not installed": (
        ("launch", "claude"),
        "claude is not installed: npm install -g @anthropic-ai/claude-code",
    ),
    "a client that there is not": (
        ("env", "copilot"),
        "Invalid value for '{claude|codex|opencode|aider|cline|qwen|crush|goose|gemini|openai|anthropic|google}': 'copilot' is not one of 'claude', 'codex', 'opencode', 'aider', 'cline', 'qwen', 'crush', 'goose', 'gemini', 'openai', 'anthropic', 'google'. See toolwire env --help",
    ),
    "a shell that there is not": (
        ("env", "openai", "--shell", "tcsh"),
        "Invalid value for '--shell' / '-s': 'tcsh' is not one of 'sh', 'fish', 'powershell'. See toolwire env --help",
    ),
    "a model that there is not": (
        ("env", "claude", "--model", "demmo"),
        "--model: there is no model 'demmo' here; did you mean demo?",
    ),
    "a backend that there is not": (
        ("models", "dmeo"),
        "models: there is no backend 'dmeo'; did you mean demo?",
    ),
    "a preset that there is not": (
        ("init", "--yes", "--preset", "grok"),
        "--preset: there is no preset 'grok'; did you mean xai?",
    ),
    "an address from outside without keys": (
        ("env", "openai", "--host", "10.0.0.1"),
        "server.host: 10.0.0.1 can be reached from outside; add a [[keys]] entry first",
    ),
}


@pytest.mark.parametrize(("command", "said"), COMMANDS.values(), ids=COMMANDS)
def test_a_command_line_that_is_wrong(desk: Desk, command: tuple[str, ...], said: str):
    done = desk.run(*command)
    assert (done.returncode, done.stdout, done.stderr) == (2, "", f"toolwire: {said}\n")


LOCAL = (
    "toolwire: ./toolwire.toml is ignored, because only serve reads it by default; "
    "to use it, pass --config toolwire.toml\n"
)


def test_a_file_of_the_working_directory_that_is_not_used_is_mentioned_once(desk: Desk):
    (desk.folder / "toolwire.toml").write_text('[[backends]]\npreset = "deepseek"\nname = "here"\n')
    for command in (("models",), ("doctor",), ("config",), ("config", "path"), ("run", "Hi"), ("store", "check")):
        done = desk.run(*command)
        assert done.stderr.count(LOCAL) == 1, (command, done.stderr)
        assert done.stderr.startswith(LOCAL)
        assert "here" not in done.stdout
    for command in (("models", "-c", "toolwire.toml"), ("config", "-c", "toolwire.toml", "path"), ("--version",)):
        assert LOCAL not in desk.run(*command).stderr
    assert "here (chat" in desk.run("models", "-c", "toolwire.toml").stdout


def test_the_users_own_file_in_the_working_directory_is_used_without_a_word(desk: Desk):
    desk.configure("")
    desk.folder = desk.config.parent
    assert desk.run("models").stderr == ""


UNSET = "DEEPSEEK_API_KEY is not set; start Toolwire with the key of its server in it"


def test_a_backend_without_its_key_stops_no_command(desk: Desk):
    desk.configure('[[backends]]\npreset = "deepseek"\nmodels = ["deepseek-chat"]\n')
    listed = desk.run("models")
    assert (listed.returncode, listed.stderr) == (0, f"toolwire: deepseek: unavailable: {UNSET}\n")
    assert "  demo\n" in listed.stdout
    assert desk.run("run", "-m", "demo", "Hello").returncode == 0
    for command in (("env", "claude"), ("config",), ("store", "check")):
        assert desk.run(*command).returncode == 0, command
    refused = desk.run("run", "-m", "deepseek-chat", "Hello")
    said = f"toolwire: Backend `deepseek` is unavailable: {UNSET}.\n"
    assert (refused.returncode, refused.stderr) == (2, said)


def test_a_model_has_to_be_named_where_there_are_only_globs(desk: Desk):
    desk.configure('[[backends]]\npreset = "deepseek"\n')
    done = desk.run("env", "claude", DEEPSEEK_API_KEY="k")
    said = "choose a model with --model: deepseek serves deepseek-*; toolwire models lists them"
    assert (done.returncode, done.stdout, done.stderr) == (2, "", f"toolwire: {said}\n")


def test_a_key_is_never_shown_wherever_it_was_put(desk: Desk):
    key = "sk-live-0123456789abcdef"
    entries = [f'api_key = "{key}"', f'api_key_env = "{key}"', f'auth = "{key}"', f'key_header = "{key}"']
    addresses = [f"me:{key}@host/v1", f"http://me:{key}@host/v1/chat/completions", f"http://me:{key}@host:x/v1"]
    urls = [BACKEND.replace("http://127.0.0.1:1/v1", address) for address in addresses]
    for text in (*(f"{BACKEND}{entry}\n" for entry in entries), *urls):
        desk.configure(text)
        done = desk.run("config")
        assert done.returncode == 2
        assert key not in done.stderr
