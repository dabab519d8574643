"""What went wrong, as a value, and how long a server asks to wait."""

import time

import pytest

from toolwire.backends.failures import read_retry_after
from toolwire.core.errors import BadRequest, Failure, InternalError, ReplyTooLarge, TooManyCalls

NOW = 1_700_000_000.0


@pytest.mark.parametrize(
    ("said", "seconds"),
    [
        ("3", 3.0),
        ("0.5", 0.5),
        ("Tue, 14 Nov 2023 22:13:50 GMT", 30.0),
        ("Tue, 14 Nov 2023 22:13:10 GMT", None),
        ("soon", None),
        ("-3", None),
        ("nan", None),
        ("", None),
    ],
)
def test_a_pause_is_a_number_or_a_date_to_come(said: str, seconds: float | None):
    assert Failure(429, "busy", "Busy.", retry_after=said).pause(NOW) == seconds


@pytest.mark.parametrize("zone", ["", " GMT", " -0000"])
def test_a_date_without_a_zone_is_utc_wherever_the_gateway_runs(monkeypatch: pytest.MonkeyPatch, zone: str):
    date = "Tue, 14 Nov 2023 22:13:50"
    with monkeypatch.context() as patch:
        patch.setenv("TZ", "JST-9")
        time.tzset()
        try:
            assert read_retry_after(date + zone) == f"{date} GMT"
            assert Failure(429, "busy", "Busy.", retry_after=date + zone).pause(NOW) == 30.0
        finally:
            patch.undo()
            time.tzset()


def test_every_error_is_a_failure_that_dialects_can_write():
    assert BadRequest("No.", "input", "odd", 404).failure == Failure(404, "odd", "No.", param="input")
    assert InternalError().failure.status == 500
    assert "1000 bytes" in ReplyTooLarge(1000).failure.message
    assert TooManyCalls().failure.code == "reply_too_large"
