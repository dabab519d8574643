"""`tests/store/test_contract_runs.py` on further engines."""

from tests.store.test_contract_runs import *  # noqa: F403
