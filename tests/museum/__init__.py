"""The museum of tool-call faults."""

import pytest

pytest.register_assert_rewrite(*(f"{__name__}.{name}" for name in ("clients", "gate", "lines", "texts")))
