"""Every error can be pickled and copied, as process pools and test runners do: its text and its fields stay."""

import copy
import inspect
import pickle
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest

from toolwire.agent import Agent, ModelFailed, ModelRateLimited, Session
from toolwire.agent import errors as agent_errors
from toolwire.core.errors import BackendFault, Failure, RateLimited, ToolwireError
from toolwire.gateway.memory_budget import Overloaded
from toolwire.gateway.responses.conversation_lock import Locked
from toolwire.gateway.workers.supervisor import StartFailed
from toolwire.memory.postgres.faults import NotUsable
from toolwire.memory.store import RunLimits, StoreFailed, TooManyRuns
from toolwire.testing import ScriptedModel

FAILURE = Failure(502, "odd", "It broke.")
MADE: dict[type[Any], Callable[[type[Any]], Any]] = {
    agent_errors.MaxTurnsExceeded: lambda kind: kind(3),
    BackendFault: lambda kind: kind(FAILURE),
    ModelFailed: lambda kind: kind(FAILURE),
    ModelRateLimited: lambda kind: kind(FAILURE),
    RateLimited: lambda kind: kind(FAILURE),
    NotUsable: lambda kind: kind("busy", "locked"),
    Overloaded: lambda kind: kind(1000, 529),
    StoreFailed: lambda kind: kind("busy", "locked"),
    Locked: lambda kind: kind("conversation"),
    TooManyRuns: lambda kind: kind(RunLimits(512, 64), of_owner=True),
}
VALUES = {
    "limit": 1000,
    "expected": "chat",
    "found": "messages",
    "failure": FAILURE,
    "guard": "x",
    "seconds": 1.5,
}
"""Arguments that are not any text."""
LOADED = (StartFailed,)
"""Errors that nothing else here loads."""


def subclasses(kind: type[ToolwireError]) -> Iterator[type[ToolwireError]]:
    for each in kind.__subclasses__():
        if each.__module__.startswith("toolwire"):
            yield each
            yield from subclasses(each)


def made(kind: type[ToolwireError]) -> ToolwireError:
    """One of this kind, with something for each argument that it needs."""
    if kind in MADE:
        return MADE[kind](kind)
    needed = [each for each in inspect.signature(kind.__init__).parameters.values() if each.default is each.empty]
    names = [each.name for each in needed if each.kind is each.POSITIONAL_OR_KEYWORD and each.name != "self"]
    return kind(*(VALUES.get(name, "words") for name in names)) if names else kind()


@pytest.mark.parametrize("kind", [*subclasses(ToolwireError)], ids=lambda kind: kind.__name__)
def test_an_error_is_pickled_and_copied_as_it_is(kind: type[ToolwireError]):
    error = made(kind)
    for again in (pickle.loads(pickle.dumps(error)), copy.copy(error), copy.deepcopy(error)):
        assert type(again) is kind
        assert (str(again), again.__dict__) == (str(error), error.__dict__)
        assert again.failure.message == error.failure.message


def fail(_: int) -> str:
    return Agent(ScriptedModel()).run_sync("Hello").output


def test_the_error_of_a_run_comes_out_of_a_process_pool():
    with (
        ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool,
        pytest.raises(ModelFailed, match="0 turns") as failed,
    ):
        pool.submit(fail, 1).result()
    session = failed.value.session
    assert session is not None
    assert Agent(ScriptedModel("Now.")).run_sync("Again", session=session).output == "Now."


def test_a_session_that_is_held_is_pickled_without_its_lock(tmp_path: Path):
    session = Session.begin("demo", Path.cwd(), tmp_path)
    session.hold()
    again: Session = pickle.loads(pickle.dumps(session))
    assert (again.id, again.is_held, session.is_held) == (session.id, False, True)
    session.close()
