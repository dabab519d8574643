"""openai-python on two gateways with one store, each request at a random one: all that one gateway keeps, both have."""

from tests.clients.replicas import base_url, gateway  # noqa: F401 - these two take the place of the single gateway
from tests.sdk.test_responses_state import *  # noqa: F403
