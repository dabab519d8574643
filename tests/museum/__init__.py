"""The museum of tool-call faults."""

import pytest

_READERS = ("clients", "gate", "lines", "messages_client", "routes", "texts")

pytest.register_assert_rewrite(*(f"{__name__}.{name}" for name in _READERS))
