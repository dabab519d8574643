"""A call is known by the same key in every process, whatever its client trims."""

import subprocess
import sys

from toolwire.core.request import CallEntry, Message, TextPart
from toolwire.memory.call_keys import CallKeys

ONE, OTHER = (Message("user", (TextPart(words),)) for words in ("one", "other"))
CALL = CallEntry("call_0", "find", "{}")
PRINT = """
from toolwire.core.request import CallEntry, Message, TextPart
from toolwire.memory.call_keys import CallKeys
print(CallKeys("me", [Message("user", (TextPart("one"),))]).key("call_0", "find"))
"""


def test_a_key_is_equal_in_every_process() -> None:
    keys = {
        subprocess.run(
            [sys.executable, "-c", PRINT], env={"PYTHONHASHSEED": seed}, capture_output=True, text=True, check=True
        ).stdout
        for seed in ("1", "2")
    }
    assert keys == {f"{CallKeys('me', [ONE]).key('call_0', 'find')}\n"}


def test_calls_with_one_id_are_counted_behind_each_message_of_the_user() -> None:
    keys = CallKeys("me")
    found = [keys.see(entry) for entry in (ONE, CALL, CALL, OTHER, CALL)]
    first, second, third = (key for key in found if key is not None)
    assert (first[-1], second[-1], third[-1]) == (1, 2, 1)
    assert first[:-1] == second[:-1] != third[:-1]


def test_what_stands_before_the_message_of_the_user_does_not_matter() -> None:
    assert CallKeys("me", (ONE, CALL, OTHER)).see(CALL) == CallKeys("me", (OTHER,)).see(CALL)


def test_the_next_call_is_counted_on() -> None:
    assert CallKeys("me", (ONE, CALL)).key("call_0", "find")[-1] == 2
