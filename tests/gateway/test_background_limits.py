"""Background responses are bounded for each key and in all, so that no key takes what others need."""

import resource
from collections.abc import Iterator

import pytest

from tests.support.frames import completed, created, stream, text
from tests.support.gateway import Gate, Gateway, Responses, backend, error_of, good, response_body
from tests.support.gateways import over
from tests.support.upstream import Reply, Upstream
from toolwire.config.settings import Server
from toolwire.gateway.lifespan import FILES_PER_RUN, make_run_limits
from toolwire.memory.store import RunLimits, TooManyRuns

KEYS = "".join(f'[[keys]]\nname = "{name}"\nkey = "key-of-{name}"\n' for name in ("ann", "ben", "cat"))
BOUNDS = "[server]\nmax_background_runs = 3\nmax_background_runs_per_owner = 2\n"


@pytest.fixture
def gate(upstream: Upstream) -> Iterator[Gate]:
    gate = Gate(stream(created(), text("Once ")), after=(stream(text("upon"), completed()),))
    upstream.replies["limited"] = Reply(gate)
    upstream.replies["quick"] = Reply([stream(created(), text("hi"), completed())])
    yield gate
    gate.open()


@pytest.fixture
def limited(upstream: Upstream, tmp_path) -> Iterator[Gateway]:
    gateway = Gateway(tmp_path, BOUNDS + KEYS + backend(upstream.url))
    yield gateway
    gateway.stop()


@pytest.mark.parametrize("streamed", [False, True], ids=["plain", "streamed"])
def test_a_run_too_many_is_refused_and_others_are_served(limited, http, gate, streamed):
    ann, ben, cat = (Responses(http, limited, f"key-of-{name}") for name in ("ann", "ben", "cat"))
    runs = [ann.create("up/limited", background=True)["id"] for _ in range(2)]
    refused = ann.post(response_body("up/limited", background=True, stream=streamed))
    status, error = error_of(refused)
    assert (status, error["code"], error["type"]) == (429, "too_many_background_runs", "rate_limit_error")
    assert "2 per key (server.max_background_runs_per_owner)" in error["message"]
    assert int(refused.headers["retry-after"]) > 0
    ben.create("up/limited", background=True)
    status, error = error_of(cat.post(response_body("up/limited", background=True)))
    assert (status, "3 (server.max_background_runs)" in error["message"]) == (429, True)
    for api in (ann, ben, cat):
        assert good(api.post(response_body("up/quick"))).json()["status"] == "completed"
    gate.open()
    for id in runs:
        assert over(ann, id)["status"] == "completed"
    assert cat.create("up/limited", background=True)["status"] == "queued"


def test_a_run_that_is_cancelled_makes_room(limited, http, gate):
    ann = Responses(http, limited, "key-of-ann")
    first, _ = (ann.create("up/limited", background=True)["id"] for _ in range(2))
    assert ann.post(response_body("up/limited", background=True)).status_code == 429
    good(ann.post({}, f"/{first}/cancel"))
    ann.create("up/limited", background=True)


def test_runs_leave_most_files_to_others(monkeypatch: pytest.MonkeyPatch):
    assert make_run_limits(Server()) == RunLimits(512, 64)
    monkeypatch.setattr(resource, "getrlimit", lambda _: (1024, 1024))
    limits = make_run_limits(Server())
    assert (limits.in_all, limits.per_owner) == (1024 // FILES_PER_RUN, 64)
    monkeypatch.setattr(resource, "getrlimit", lambda _: (1, 1))
    assert make_run_limits(Server()).in_all == 1


@pytest.mark.parametrize(
    ("files", "cause"),
    [
        (400, "the limit is 100 (one for every 4 of the 400 files that the gateway may open)."),
        (2048, "the limit is 512 (server.max_background_runs)."),
        (100_000, "the limit is 512 (server.max_background_runs)."),
    ],
)
def test_a_refusal_names_the_limit_that_was_reached(monkeypatch: pytest.MonkeyPatch, files: int, cause: str):
    monkeypatch.setattr(resource, "getrlimit", lambda _: (files, files))
    limits = make_run_limits(Server())
    with pytest.raises(TooManyRuns) as refused:
        limits.check(in_all=limits.in_all, owned=0)
    assert cause in refused.value.failure.message
    with pytest.raises(TooManyRuns) as refused:
        limits.check(in_all=limits.in_all, owned=limits.per_owner)
    assert "64 per key (server.max_background_runs_per_owner)" in refused.value.failure.message
    limits.check(in_all=limits.in_all - 1, owned=limits.per_owner - 1)
