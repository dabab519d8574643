"""Who fails is not asked again without end, nor by everybody at once."""

from toolwire.backoff import MAX_SAVED_RETRIES, MAX_SPREAD, MIN_RETRIES_PER_MINUTE, RetryBudget, add_spread, retry_after
from toolwire.core.errors import Failure
from toolwire.gateway.memory_budget import Overloaded
from toolwire.memory.store import StoreFailed


def _spent(budget: RetryBudget, now: float = 1.0) -> int:
    """How many retries are left, all of which are spent then."""
    count = 0
    while budget.spend(now):
        count += 1
    return count


def test_a_backend_has_a_few_retries_at_first() -> None:
    assert _spent(RetryBudget(0.2)) == MIN_RETRIES_PER_MINUTE


def test_requests_earn_retries_by_their_share() -> None:
    budget = RetryBudget(0.2)
    assert _spent(budget) == MIN_RETRIES_PER_MINUTE
    for _ in range(50):
        budget.earn()
    assert 9 <= _spent(budget) <= 10


def test_retries_that_nobody_needs_are_not_saved_up_for_ever() -> None:
    budget = RetryBudget(1.0)
    for _ in range(10 * MAX_SAVED_RETRIES):
        budget.earn()
    assert _spent(budget) == MAX_SAVED_RETRIES


def test_the_reserve_comes_back_in_a_minute_and_no_more_than_that() -> None:
    budget = RetryBudget(0.0)
    assert _spent(budget, 100.0) == MIN_RETRIES_PER_MINUTE
    assert _spent(budget, 106.5) == 1
    assert _spent(budget, 500.0) == MIN_RETRIES_PER_MINUTE


def test_retries_stay_within_the_share_however_many_requests_fail() -> None:
    budget = RetryBudget(0.2)
    retries = 0
    for number in range(1000):
        budget.earn()
        retries += sum(budget.spend(1.0 + number / 1000) for _ in range(2))
    assert retries <= 0.2 * 1000 + MIN_RETRIES_PER_MINUTE + 1


def test_a_pause_that_a_server_asks_for_is_kept_and_spread() -> None:
    pauses = {add_spread(4.0) for _ in range(200)}
    assert len(pauses) > 100
    assert all(4.0 <= pause <= 4.0 * (1 + MAX_SPREAD) for pause in pauses)
    assert add_spread(0.0) == 0.0


def test_our_own_retry_after_is_spread_and_in_whole_seconds() -> None:
    assert {retry_after(10) for _ in range(500)} == {"10", "11", "12", "13"}
    for make in (lambda: Overloaded(1, 503).failure, lambda: StoreFailed("full", "").failure):
        failures: list[Failure] = [make() for _ in range(200)]
        assert len({failure.retry_after for failure in failures}) > 1
