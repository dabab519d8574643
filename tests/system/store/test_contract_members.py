"""`tests/store/test_contract_members.py` on further engines."""

from tests.store.test_contract_members import *  # noqa: F403
