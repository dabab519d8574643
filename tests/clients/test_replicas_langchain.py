"""LangChain on two gateways with one store, each request at a random one."""

from tests.clients.replicas import base_url, gateway  # noqa: F401 - these two take the place of the single gateway
from tests.clients.test_responses_langchain import *  # noqa: F403
