"""A writer that is overtaken while it writes has written before, or not at all."""

import pytest

from tests.store.place import Users
from tests.store.races import RACES


@pytest.mark.parametrize("race", RACES, ids=lambda race: race.__name__)
def test_who_is_overtaken_while_it_writes_leaves_no_trace(store: Users, race):
    for place in range(15):
        race(store, str(place))
