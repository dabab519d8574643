"""`tests/store/test_contract_races.py` on further engines."""

from tests.store.test_contract_races import *  # noqa: F403
