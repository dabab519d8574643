"""What a worker may take of what the machine has is its share, and never too little for one request."""

import msgspec
import pytest

from toolwire.config.settings import Server, Settings, bytes_of
from toolwire.gateway.workers.worker import divide_limits

ROOM = bytes_of(Server().max_body) + bytes_of(Server().max_reply)
"""Bytes of one body with its reply."""


@pytest.mark.parametrize(
    ("whole", "workers", "share"),
    [(8 * ROOM, 4, 2 * ROOM), (8 * ROOM, 16, ROOM), (ROOM // 2, 4, ROOM // 2)],
    ids=["a share", "at least one request", "never more than all"],
)
def test_every_worker_has_room_for_one_body_with_its_reply(whole: int, workers: int, share: int):
    server = msgspec.structs.replace(Server(), max_in_flight=whole, workers=workers)
    settings = Settings(server=server)
    assert {divide_limits(settings, slot).server.max_in_flight for slot in range(workers)} == {share}
