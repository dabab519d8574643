"""`toolwire check` as people use it: the real program, on the real gateway, on servers with a fault, and on files."""

import base64
import json
import re
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from tests.agent.terminal import PROGRAM, Terminal, environment
from tests.check import responses_turns
from tests.check.faulty import Fault, Faulty, ReceivedRequest, contains, drop, html, refuse, refusing, rewritten, where
from tests.check.streams import wire
from tests.support import processes
from tests.support.gateway import Gateway
from tests.support.upstream import Hold, Reply
from toolwire.check.address import normalise_url
from toolwire.cli import app
from toolwire.core.display import clean

APIS = ("chat", "responses", "messages", "gemini")
KEY = "sk-check-0123456789abcdef"
SUMMARY = re.compile(
    r": (\d+) (?:requests?|turns?)\b.*?; (?:\d+ of the broken ones follow from others, )?(\d+) passed, (\d+) not"
)


class Ran:
    """What the program has said, and how it ended."""

    def __init__(self, code: int, out: str, err: str) -> None:
        self.code, self.out, self.err = code, out, err

    @property
    def counts(self) -> tuple[int, ...]:
        """MUST broken, SHOULD broken, passed, not observed, requests."""
        verdict, about = self.out.splitlines()[:2]
        found = SUMMARY.search(about)
        assert found is not None, (self.out, self.err)
        levels = [re.search(rf"(\d+) {level}", verdict) for level in ("MUST", "SHOULD")]
        requests, passed, unseen = map(int, found.groups())
        return (*(int(each[1]) if each else 0 for each in levels), passed, unseen, requests)

    @property
    def table(self) -> list[str]:
        """The head of the table, which follows the verdict, what was checked and a blank line."""
        assert self.out.splitlines()[2] == ""
        return self.out.splitlines()[3].split()

    @property
    def findings(self) -> list[str]:
        return re.findall(r"^(?:MUST|SHOULD) (\S+) on (?:[\w, ]+):", self.out, re.MULTILINE)

    def refuses(self, *words: str) -> None:
        """Nothing was checked, and one line says why."""
        assert (self.code, self.out) == (2, ""), self.out
        assert self.err.startswith("toolwire: "), self.err
        assert self.err.count("\n") == 1, self.err
        for word in words:
            assert word in self.err, self.err


class CheckRunner:
    """A folder, and the program started there."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.environment = environment(folder)

    def check(self, *args: str, **more: str) -> Ran:
        done = processes.run(
            (*PROGRAM, "check", *args),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            cwd=self.folder,
            env={**self.environment, **more},
            timeout=60,
            check=False,
        )
        return Ran(done.returncode, done.stdout.decode(), done.stderr.decode())

    def run_in_process(self, *args: str) -> Ran:
        """The same in this process, which is faster."""
        result = CliRunner().invoke(app, ["check", *args], env={**self.environment, "COLUMNS": "80"})
        assert result.exception is None or isinstance(result.exception, SystemExit), result.exc_info
        return Ran(result.exit_code, result.stdout, result.stderr)

    def write(self, name: str, data: bytes | str) -> str:
        path = self.folder / name
        path.write_bytes(data.encode() if isinstance(data, str) else data)
        return str(path)


@pytest.fixture
def checker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CheckRunner:
    monkeypatch.chdir(tmp_path)
    return CheckRunner(tmp_path)


@pytest.fixture(scope="module")
def faulty(gateway: Gateway) -> Iterator[Faulty]:
    server = Faulty(gateway.url)
    yield server
    server.stop()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("sound")


@pytest.fixture(scope="module")
def sound(gateway: Gateway, folder: Path) -> Ran:
    """A check of a sound endpoint. No stream is long enough for the rule about time, which a busy server breaks."""
    with pytest.MonkeyPatch.context() as patch:
        for module in ("endpoint", "run"):
            patch.setattr(f"toolwire.check.{module}.MIN_LIVE_SECONDS", 3600.0)
        return CheckRunner(folder).run_in_process(gateway.url, "--record", str(folder / "kept"))


@pytest.fixture(scope="module")
def recorded(sound: Ran, folder: Path) -> Path:
    """All its exchanges."""
    return folder / "kept"


def no_choice() -> Fault:
    """A fault that breaks one MUST."""
    return Fault(drop("tool_choice"))


# Addresses


@pytest.mark.parametrize(
    ("url", "base"),
    [
        ("http://h:1", "http://h:1/v1"),
        ("http://h:1/", "http://h:1/v1"),
        ("http://h:1/v1", "http://h:1/v1"),
        ("http://h:1/v1/", "http://h:1/v1"),
        ("http://h:1/v1/chat/completions", "http://h:1/v1"),
        ("http://h:1/v1beta/models/qwen3:8b:generateContent", "http://h:1/v1beta"),
        ("http://h:1/v1beta/models/a/b:streamGenerateContent", "http://h:1/v1beta"),
        ("http://h:1/v1/models", "http://h:1/v1/models"),
        ("http://h:1/v1/responses/", "http://h:1/v1"),
        ("http://h:1/v1/messages", "http://h:1/v1"),
        ("http://h:1/chat/completions", "http://h:1"),
        ("https://h/api/paas/v4", "https://h/api/paas/v4"),
        ("https://h/openai", "https://h/openai/v1"),
        ("https://h/v1beta/openai/", "https://h/v1beta/openai"),
        ("http://vm:8001", "http://vm:8001/v1"),
        ("http://vllm1", "http://vllm1/v1"),
        ("127.0.0.1:8787", "http://127.0.0.1:8787/v1"),
        ("localhost:8787/v1/messages", "http://localhost:8787/v1"),
        ("[::1]:8787", "http://[::1]:8787/v1"),
        ("10.0.0.7:8000", "http://10.0.0.7:8000/v1"),
        ("vllm:8000", "http://vllm:8000/v1"),
        ("gpu.local:8000", "http://gpu.local:8000/v1"),
        ("api.example.com", "https://api.example.com/v1"),
        ("api.example.com:8443/openai", "https://api.example.com:8443/openai/v1"),
    ],
)
def test_the_scheme_and_the_version_in_an_address_may_be_left_out(url: str, base: str):
    assert normalise_url(url) == base


@pytest.mark.parametrize("path", ["", "/v1", "/v1/chat/completions"])
def test_an_endpoint_is_checked_by_its_address(checker: CheckRunner, gateway: Gateway, path: str):
    ran = checker.check(gateway.url.removeprefix("http://") + path, "--api", "chat,messages", "--only", "choice")
    assert (ran.code, ran.err) == (0, "")
    assert ran.counts[:4] == (0, 0, 9, 0)


def test_a_sound_endpoint_is_said_to_be_sound_in_the_first_line(sound: Ran):
    assert sound.out.splitlines()[0] == "PASSED: no rule is broken."

    assert (sound.code, sound.err, sound.findings) == (0, "", [])
    must, should, passed, unseen, _ = sound.counts
    assert (must, should, unseen) == (0, 0, len(APIS))
    assert passed > 180
    assert sound.table == ["area", *APIS]
    assert "\x1b" not in sound.out
    assert "stream.live" in sound.out


def test_a_finding_is_shown_with_the_rule_the_request_and_the_bytes(checker: CheckRunner, faulty: Faulty):
    url = faulty.add(no_choice())
    ran = checker.check(url, "--api", "chat", "--only", "choice.none", "--only", "choice.named")
    assert ran.code == 1
    assert ran.findings == ["choice.none", "choice.named"]
    out = ran.out
    assert "MUST choice.none on chat: `tool_choice` none prevents calls." in out
    assert "Harm: Agents run a tool that the client has forbidden." in out
    assert "Seen: There is one call." in out
    assert f"> POST {url}/v1/chat/completions {{" in out
    assert '< data: {"id":"chatcmpl-' in out
    assert ran.counts[:4] == (2, 0, 0, 0)


def test_a_broken_should_is_told_and_does_not_fail(checker: CheckRunner, faulty: Faulty):
    url = faulty.add(Fault(where(lambda received: received.method == "GET", refusing(404))))
    ran = checker.run_in_process(url, "--model", "demo", "--api", "messages", "--only", "models")
    assert (ran.code, ran.findings, ran.counts[:2]) == (0, ["models.listed"], (0, 1))


def test_what_a_server_says_does_not_steer_the_terminal(checker: CheckRunner, faulty: Faulty):
    hostile = b'{"detail":"\x1b[2J\x1b[31mgone\x07\xc2\x9b3m"}'
    url = faulty.add(Fault(where(contains("no-such-model"), lambda _: Reply([hostile], 400, "application/json"))))
    argv = (*PROGRAM, "check", url, "--model", "demo", "--api", "chat", "--only", "errors.form")
    with Terminal(argv, checker.environment, cwd=checker.folder) as terminal:
        assert terminal.end() == 1
        assert any("MUST errors.form on chat" in line for line in terminal.lines), "and the screen is whole"


def test_a_rule_has_one_proof_for_all_apis_and_no_line_is_wrapped(checker: CheckRunner, faulty: Faulty):
    ran = checker.check(faulty.add(no_choice()), "--only", "choice")
    assert ran.out.startswith("FAILED: 10 MUST and 2 SHOULD rules are broken.\n")
    assert ran.findings == ["choice.none", "choice.required", "choice.named", "choice.parallel"]
    assert "MUST choice.none on chat, responses, messages: `tool_choice` none prevents calls." in ran.out
    assert len(re.findall(r"^ +> ", ran.out, re.MULTILINE)) == 4, "one request for each rule"
    assert all(line == line.rstrip() for line in ran.out.splitlines())


def test_rules_that_follow_stand_behind_their_cause(checker: CheckRunner, faulty: Faulty):
    ran = checker.check(faulty.add(no_choice()), "--api", "chat", "--only", "choice", "--only", "errors")
    follows = [line for line in ran.out.splitlines() if "It follows:" in line]
    assert [line.split()[3] for line in follows] == ["choice.allowed", "errors.choice"]
    assert ran.out.index("MUST choice.none on") < ran.out.index(follows[0]) < ran.out.index("MUST choice.named on")
    assert "2 of the broken ones follow from others" in ran.out.splitlines()[1]


def test_what_is_wrong_is_marked_in_the_request_and_in_the_frames(checker: CheckRunner, faulty: Faulty):
    url = faulty.add(Fault(answer=rewritten(b'"sequence_number":5', b'"sequence_number":3'), to=is_streamed_response))
    ran = checker.check(url, "--api", "responses", "--only", "responses.sequence", "--model", "demo")
    proof = [line for line in ran.out.splitlines() if ">>>" in line]
    assert [re.findall(">>>(.*?)<<<", line) for line in proof] == [['"sequence_number":4'], ['"sequence_number":3']]
    ignored = checker.run_in_process(faulty.add(no_choice()), "--api", "chat", "--only", "choice.none")
    assert '>>>"tool_choice":"none"<<<' in ignored.out
    assert '>>>"name":"get_weather"<<<' in ignored.out


def test_on_a_terminal_the_wrong_part_has_a_colour_instead(checker: CheckRunner, faulty: Faulty):
    argv = (*PROGRAM, "check", faulty.add(no_choice()), "--api", "chat", "--only", "choice.none")
    with Terminal(argv, checker.environment, cwd=checker.folder) as terminal:
        assert terminal.end() == 1
        assert any("FAILED: 1 MUST rule is broken." in line for line in terminal.lines)
        assert not any(">>>" in line for line in terminal.lines)


def is_streamed_response(received: ReceivedRequest) -> bool:
    return received.api == "responses" and received.streamed


# Keys


def wants_key(*, models: bool) -> Fault:
    """A server that answers nobody without the right key, or lists its models all the same."""

    def ask(received: ReceivedRequest) -> Reply | None:
        given = received.headers.get("x-api-key") or received.headers.get("authorization", "").removeprefix("Bearer ")
        is_open = models and received.path.endswith("/models")
        return None if is_open or given == KEY else refuse(401, received)

    return Fault(ask)


@pytest.mark.parametrize("models", [False, True])
@pytest.mark.parametrize("options", [(), ("--model", "demo")])
def test_an_endpoint_that_wants_a_key_says_so_and_breaks_no_rule(
    checker: CheckRunner, faulty: Faulty, models: bool, options: tuple[str, ...]
):
    url = faulty.add(wants_key(models=models))
    ran = checker.run_in_process(url, *options)
    ran.refuses("refuses access: a key is needed (status 401: No.): give one with --key or in TOOLWIRE_CHECK_KEY")
    wrong = checker.run_in_process(url, *options, "--key", "sk-wrong-0123456789")
    wrong.refuses("refuses access: the key is refused (status 401: No.)")
    assert "sk-wrong" not in wrong.err


def test_a_key_that_is_revoked_in_the_middle_ends_the_check(checker: CheckRunner, faulty: Faulty):
    seen: list[str] = []

    def revoke(received: ReceivedRequest) -> Reply | None:
        seen.append(received.path)
        return refuse(401, received) if len(seen) > 20 else None

    ran = checker.run_in_process(faulty.add(Fault(revoke)), "--model", "demo", "--key", KEY)
    assert (ran.code, ran.findings, ran.counts[:2]) == (0, [], (0, 0))
    assert ran.out.startswith("INCOMPLETE: no rule is broken.\n")
    assert "chat was not checked to the end: the key is refused (status 401: No.)" in ran.out
    assert "responses was not checked: the key is refused (status 401: No.)" in ran.out
    assert len(seen) < 30, "no further request is made"


# What is asked for


def test_apis_are_chosen(checker: CheckRunner, faulty: Faulty):
    url = faulty.add(Fault())
    ran = checker.run_in_process(url, "--api", "messages, chat", "--only", "stream.same", "--model", "demo")
    assert (ran.code, ran.table) == (0, ["area", "messages", "chat"])
    assert {received.api for received in faulty.requests(url)} == {"chat", "messages"}


def test_an_api_that_is_not_there_is_said(checker: CheckRunner, faulty: Faulty):
    url = faulty.add(Fault(where(lambda received: received.api == "responses", refusing(404))))
    ran = checker.run_in_process(url, "--model", "demo", "--only", "choice.required")
    assert (ran.code, ran.counts[:4]) == (0, (0, 0, 3, 0))
    assert "responses was not checked: status 404" in ran.out


def test_the_model_is_the_one_that_was_named(checker: CheckRunner, faulty: Faulty):
    url = faulty.add(Fault())
    checker.run_in_process(url, "--api", "chat", "--only", "errors.choice", "--model", "up/nobody-knows").refuses(
        "nobody-knows"
    )
    assert {received.body["model"] for received in faulty.requests(url)} == {"up/nobody-knows"}


def test_only_chosen_rules_are_tried(checker: CheckRunner, faulty: Faulty):
    url = faulty.add(Fault())
    ran = checker.run_in_process(url, "--api", "chat", "--model", "demo", "--only", "choice.none", "--only", "models")
    assert (ran.code, ran.counts) == (0, (0, 0, 2, 0, 5))
    assert len(faulty.requests(url)) == 5


HEADERS_WITH_KEYS = ("authorization", "x-api-key", "x-goog-api-key")


@pytest.mark.parametrize("given", ["option", "environment"])
def test_a_key_goes_where_each_api_wants_it_and_nowhere_else(checker: CheckRunner, faulty: Faulty, given: str):
    def repeat(received: ReceivedRequest) -> Reply | None:
        """A server that repeats headers in its errors."""
        if received.contains("no-such-model"):
            return Reply([json.dumps({"detail": [*received.headers.values()]}).encode()], 400, "application/json")
        return None

    url = faulty.add(Fault(repeat))
    option = ["--key", KEY] if given == "option" else []
    reports = [part for ending in ("json", "xml", "html") for part in ("--report", f"report.{ending}")]
    ran = checker.check(
        url, "--only", "errors", "--record", "kept", *reports, *option,
        **({} if option else {"TOOLWIRE_CHECK_KEY": KEY}),
    )  # fmt: skip
    assert (ran.code, set(ran.findings)) == (1, {"errors.form"})
    for received in faulty.requests(url):
        sent = {name: received.headers[name] for name in HEADERS_WITH_KEYS if name in received.headers}
        if received.path.startswith("/v1beta/"):
            assert sent == {"x-goog-api-key": KEY}
        elif received.api == "messages" or "anthropic-version" in received.headers:
            assert sent == {"x-api-key": KEY}
        else:
            assert sent == {"authorization": f"Bearer {KEY}"}
    files = [path for path in checker.folder.rglob("*") if path.is_file()]
    assert len(files) > 50
    assert [path for path in files if KEY.encode() in path.read_bytes()] == []
    assert KEY not in ran.out + ran.err


# Bounds


def test_a_budget_that_is_too_small_is_said_and_nothing_has_passed_by_it(checker: CheckRunner, faulty: Faulty):
    url = faulty.add(Fault())
    ran = checker.check(url, "--budget", "12", "--report", "report.json")
    assert (ran.code, ran.counts[4], len(faulty.requests(url))) == (0, 12, 12)
    assert "The budget of requests ended before the probes did: raise --budget." in ran.out
    out = json.loads((checker.folder / "report.json").read_text())
    outcomes = {(each["api"], each["rule"]["id"]): each["outcome"] for each in out["verdicts"]}
    assert out["budget_spent"] is True
    assert {outcome for (api, _), outcome in outcomes.items() if api != "chat"} == {"not observed"}
    assert outcomes["chat", "errors.status"] == "not observed"


@pytest.mark.parametrize("model", ["", "demo"])
def test_a_budget_of_nothing_is_no_check(checker: CheckRunner, gateway: Gateway, model: str):
    checker.run_in_process(gateway.url, "--budget", "0", "--model", model).refuses("the budget of 0 requests is spent")


def test_a_server_that_hangs_is_left(checker: CheckRunner, faulty: Faulty):
    url = faulty.add(Fault(lambda _: Reply([Hold()])))
    checker.check(url, "--timeout", "0.2", "--model", "demo").refuses("no answer in time")
    checker.run_in_process(url, "--timeout", "0.2").refuses("no answer in time")


# What cannot be checked


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ((), ("give the address",)),
        (("127.0.0.1:1",), ("http://127.0.0.1:1/v1 cannot be reached: the connection was refused",)),
        (("8787",), ("'8787' is not an address of an endpoint, such as 127.0.0.1:8787",)),
        (("127.0.0.1:99999",), ("is not an address",)),
        (("no-such-host.invalid",), ("https://no-such-host.invalid/v1 cannot be reached", "cannot be resolved")),
        (("http://",), ("is not an address",)),
        (("http://user:hunter2@127.0.0.1:1",), ("no password", "keys are given separately")),
        (("http://127.0.0.1:1/v1?key=hunter2",), ("no query",)),
        (("http://127.0.0.1:1", "--api", "chat,graphql"), ("'graphql' is not one of chat, responses, messages",)),
        (("http://127.0.0.1:1", "--only", "choice.nothing"), ("there is no rule 'choice.nothing'",)),
        (("http://127.0.0.1:1", "--only", "state", "--api", "chat"), ("state is no rule for chat",)),
        (("http://127.0.0.1:1", "--report", "report.pdf"), ("report.pdf", ".html, .json, .xml")),
        (("http://127.0.0.1:1", "--report", "nowhere/report.html"), ("nowhere is not a directory",)),
        (("http://127.0.0.1:1", "--file", "turn.sse"), ("give only one of",)),
        (("--har", "a.har", "--file", "turn.sse"), ("give only one of",)),
        (("--file", "nothing.sse"), ("nothing.sse: No such file",)),
        (("--file", "."), ("it is a directory",)),
        (("--har", "nothing.har"), ("No such file",)),
        (("http://127.0.0.1:1",), ("http://127.0.0.1:1/v1 cannot be reached: the connection was refused",)),
        (("http://127.0.0.1:1", "--model", "demo"), ("http://127.0.0.1:1/v1 cannot be reached: the connection was refused",)),
        (("http://no-such-host.invalid", "--model", "demo"), ("the name 'no-such-host.invalid' cannot be resolved",)),
    ],
)  # fmt: skip
def test_an_order_that_cannot_be_carried_out_is_refused(
    checker: CheckRunner, args: tuple[str, ...], words: tuple[str, ...]
):
    ran = checker.run_in_process(*args)
    ran.refuses(*words)
    assert "hunter2" not in ran.err


def test_a_report_that_cannot_be_written_is_said_before_anything_is_asked(checker: CheckRunner, faulty: Faulty):
    url = faulty.add(Fault())
    checker.check(url, "--report", "sound.json", "--report", "report.docx").refuses("report.docx")
    assert (faulty.requests(url), [*checker.folder.iterdir()]) == ([], [])


def test_records_that_cannot_be_written_are_said(checker: CheckRunner, gateway: Gateway):
    checker.write("taken", "")
    checker.run_in_process(gateway.url, "--record", "taken").refuses("--record: taken")


@pytest.mark.parametrize("options", [(), ("--model", "demo")])
def test_a_web_site_is_no_endpoint(checker: CheckRunner, faulty: Faulty, options: tuple[str, ...]):
    checker.run_in_process(faulty.add(Fault(lambda _: html())), *options).refuses("html")
    checker.run_in_process(faulty.add(Fault(lambda _: html(404))), *options).refuses("404")


def test_a_server_that_lists_no_model_wants_one_named(checker: CheckRunner, faulty: Faulty):
    url = faulty.add(Fault(lambda _: Reply([b'{"object":"list","data":[]}'], 200, "application/json")))
    checker.run_in_process(url).refuses("lists no models", "--model")


def test_a_server_that_has_moved_says_where(checker: CheckRunner, faulty: Faulty):
    url = faulty.add(Fault(lambda _: Reply([], 301, "text/html", {"location": "https://new.example/v1/"})))
    checker.run_in_process(url, "--model", "demo").refuses("status 301, which points to https://new.example/v1/")
    checker.run_in_process(url).refuses("https://new.example/v1/")
    assert all(received.path.startswith(("/v1/", "/v1beta/")) for received in faulty.requests(url)), (
        "it was not followed"
    )


# Files


def test_records_are_for_their_owner_alone(recorded: Path):
    assert {stat.S_IMODE(path.stat().st_mode) for path in recorded.iterdir()} == {0o600}
    assert stat.S_IMODE(recorded.stat().st_mode) == 0o700


def test_everything_is_recorded(recorded: Path):
    numbers = {path.name[:3] for path in recorded.iterdir()}
    assert len(numbers) > 130
    assert {path.name.split("-")[1] for path in recorded.iterdir()} == set(APIS)
    one = json.loads(next(recorded.glob("*-chat-one-call.request.json")).read_text())
    assert (one["model"], one["stream"]) == ("demo", True)


@pytest.mark.parametrize("api", APIS)
def test_what_was_recorded_can_be_checked_again(checker: CheckRunner, recorded: Path, api: str):
    for kind in ("sse", "json"):
        kept = [*recorded.glob(f"*-{api}-parallel.{kind}"), *recorded.glob(f"*-{api}-words.{kind}")]
        assert len(kept) == 3
        for path in kept:
            ran = checker.run_in_process("--file", str(path))
            assert (ran.code, ran.counts[:2]) == (0, (0, 0)), ran.out
            assert ran.table == ["area", api]


def test_what_was_recorded_of_a_fault_shows_it_again(checker: CheckRunner, faulty: Faulty):
    url = faulty.add(Fault(answer=rewritten(b'"get_weather"', b'"getWeather"'), to=contains("get_weather")))
    live = checker.check(url, "--api", "chat", "--only", "calls", "--record", "kept", "--model", "demo")
    assert (live.code, live.findings) == (1, ["calls.name"])
    found = []
    for path in sorted((checker.folder / "kept").glob("*one-call.*")):
        if not path.name.endswith(".request.json"):
            found += checker.run_in_process("--file", str(path)).findings
    assert found == ["calls.name", "calls.name"], "the name is wrong, as the request beside it says"


def test_a_file_is_checked_by_the_real_program(checker: CheckRunner, recorded: Path):
    stream = next(recorded.glob("*-chat-parallel.sse")).read_bytes()
    sound = checker.write("turn.sse", stream)
    assert checker.check("--file", sound).counts[:2] == (0, 0)
    cut = checker.check("--file", checker.write("cut.sse", stream.removesuffix(b"data: [DONE]\n\n")))
    assert (cut.code, cut.findings) == (1, ["chat.done-marker"])
    assert cut.counts[4] == 1
    assert cut.out.isascii()


def test_a_capture_shows_nothing_of_the_wire(checker: CheckRunner, recorded: Path):
    ran = checker.run_in_process("--file", str(next(recorded.glob("*-messages-one-call.sse"))))
    out = " ".join(ran.out.split())
    assert "a capture cannot show it: messages: stream.whole, stream.live, sse.content-type" in out
    assert "choice." not in ran.out


def test_a_file_may_be_anybodys(checker: CheckRunner, recorded: Path):
    stream = next(recorded.glob("*-responses-one-call.sse")).read_bytes()
    chat = checker.run_in_process("--file", checker.write("turn.sse", stream), "--api", "chat")
    assert chat.code == 1, "it is no stream of that API"
    later = b'data: {"choices":[],"object":"","prompt_filter_results":[]}\n\n'
    azure = checker.run_in_process(
        "--file", checker.write("azure.sse", later + next(recorded.glob("*-chat-one-call.sse")).read_bytes())
    )
    assert azure.table == ["area", "chat"]


@pytest.mark.parametrize(
    ("data", "word"),
    [
        (b"", "neither a stream"),
        (b"hello\n", "neither a stream"),
        (b"\x00\xff\xfe\x80", "neither a stream"),
        (b"[1, 2]", "neither a stream"),
        (b'{"hello": "you"}', "neither a stream"),
        (b"data: [DONE]\n\n", "neither a stream"),
        (b"[" * 100_000, "neither a stream"),
        (b'{"type":"error","error":{"type":"api_error","message":"No."}}', "this is an error"),
    ],
)
def test_garbage_is_no_turn(checker: CheckRunner, data: bytes, word: str):
    checker.run_in_process("--file", checker.write("garbage", data)).refuses(word)


def test_rules_of_behaviour_cannot_be_seen_in_a_file(checker: CheckRunner, recorded: Path):
    path = str(next(recorded.glob("*-chat-one-call.sse")))
    checker.run_in_process("--file", path, "--only", "choice").refuses("captured turns cannot test choice")
    assert checker.run_in_process("--file", path, "--only", "calls", "--only", "choice").code == 0


# Archives


def entry(url: str, answer: bytes, kind: str, request: Any = None, status: int = 200, **content: Any) -> dict[str, Any]:
    posted = {"mimeType": "application/json", "text": json.dumps(request)} if request is not None else {}
    body = {"mimeType": kind, **({"text": answer.decode()} if "encoding" not in content else {}), **content}
    return {
        "request": {"method": "POST", "url": url, "headers": [], **({"postData": posted} if posted else {})},
        "response": {"status": status, "content": body},
    }


def as_base64(data: bytes) -> dict[str, str]:
    return {"encoding": "base64", "text": base64.b64encode(data).decode()}


def archive(*entries: Any) -> str:
    return "\ufeff" + json.dumps({"log": {"version": "1.2", "entries": entries}})


SSE = "text/event-stream; charset=utf-8"
ASKED = {"model": "demo", "messages": [], "tools": [{"type": "function", "function": {"name": "get_weather"}}]}


def kept(recorded: Path, name: str) -> bytes:
    return next(recorded.glob(f"*-{name}")).read_bytes()


FOREIGN = (
    entry("https://discord.example/api/channels/1/messages", b'{"id":"1","content":"hi","type":0}', "application/json"),
    entry("https://shop.example/cart", b"<html>", "text/html"),
    {"request": {"method": "GET", "url": "https://h/v1/messages"}, "response": {"status": 200, "content": {}}},
    entry("https://h/v1/responses", b'{"error":{"message":"No."}}', "application/json", {"model": "m"}, 401),
    entry("https://h/v1/messages", b"", SSE, {"model": "m"}),
    {"request": 7},
    None,
)


def test_the_turns_of_an_archive_are_checked(checker: CheckRunner, recorded: Path):
    path = checker.write("session.har", archive(
        *FOREIGN,
        entry("https://h/v1/chat/completions?a=b", kept(recorded, "chat-one-call.sse"), SSE, {**ASKED, "stream": True}),
        entry("https://h/v1/messages", b"", "application/json", **as_base64(kept(recorded, "messages-unicode.json"))),
        entry("https://h/backend/responses", kept(recorded, "responses-parallel.sse"), SSE),
        entry("https://h/v1beta/models/m:streamGenerateContent?alt=sse", kept(recorded, "gemini-parallel.sse"), SSE),
        entry("https://h/v1beta/models/m:streamGenerateContent", kept(recorded, "gemini-array.json"), "application/json"),
        entry("https://h/v1beta/models/m:generateContent", kept(recorded, "gemini-words.json"), "application/json"),
    ))  # fmt: skip
    ran = checker.check("--har", path)
    # The stream was recorded with the tokens that its request in the archive does not ask for.
    assert (ran.code, ran.findings) == (0, ["chat.usage"])
    assert ran.table == ["area", *APIS]
    assert ran.counts[4] == 6, "what others have said is no turn"


def test_faults_in_an_archive_are_found(checker: CheckRunner, recorded: Path):
    stream, plain = kept(recorded, "chat-one-call.sse"), kept(recorded, "chat-one-call.json")
    received = {**ASKED, "stream": True, "stream_options": {"include_usage": True}}
    path = checker.write("session.har", archive(
        entry("https://h/v1/chat/completions", stream.replace(b"get_weather", b"getWeather"), SSE, received),
        entry("https://h/v1/chat/completions", stream, "text/plain", received),
        entry("https://h/v1/chat/completions", plain[:-2], "application/json", ASKED),
    ))  # fmt: skip
    ran = checker.run_in_process("--har", path)
    assert (ran.code, ran.findings) == (1, ["calls.name", "plain.json", "sse.content-type"])
    checker.run_in_process("--har", path, "--api", "messages").refuses("no turn of messages")


def test_an_archive_says_whether_events_beyond_the_protocol_were_asked_for(checker: CheckRunner):
    frames, _ = responses_turns.ALSO_SOUND["extended: ping"]
    captured = entry("https://h/v1/responses", wire(frames), SSE)
    assert checker.run_in_process("--har", checker.write("a.har", archive(captured))).findings
    captured["request"]["headers"] = [{"name": "X-Proxy-Responses-Events", "value": "extended"}]
    assert checker.run_in_process("--har", checker.write("b.har", archive(captured))).findings == []


def test_nothing_in_an_archive_steers_the_terminal(checker: CheckRunner, recorded: Path):
    stream = kept(recorded, "chat-one-call.sse").replace(b"get_weather", "get\u202eWeather\x9b".encode())
    url = "https://h/\x1b[2J\u202e\x9b/v1/chat/completions"
    ran = checker.check(
        "--har", checker.write("\x1b[31m.har", archive(entry(url, stream, SSE, {**ASKED, "stream": True})))
    )
    assert ran.code == 1
    assert "> POST https://h/\\x1b[2J\\u202e\\u009b/v1/chat/completions" in ran.out
    assert clean(ran.out) == ran.out
    missing = checker.check("--har", "\x1b[31m\u202enone.har")
    assert missing.err == "toolwire: none.har: No such file or directory\n"


@pytest.mark.parametrize(
    ("data", "word"),
    [
        ("", "no turn"),
        ("<html>", "no turn"),
        ('{"log":{"entries":7}}', "no turn"),
        (archive(*FOREIGN), "no turn"),
        (archive(entry("https://h/v1/messages", b"", SSE, encoding="base64", text="!")), "entry 1 is not valid base64"),
    ],
)
def test_an_archive_without_turns_is_none(checker: CheckRunner, data: str, word: str):
    checker.run_in_process("--har", checker.write("session.har", data)).refuses(word)
