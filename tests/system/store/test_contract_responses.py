"""`tests/store/test_contract_responses.py` on further engines."""

from tests.store.test_contract_responses import *  # noqa: F403
