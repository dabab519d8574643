"""The Codex CLI on two gateways with one store, each request and each WebSocket at a random one."""

from tests.clients.replicas import base_url, gateway  # noqa: F401 - these two take the place of the single gateway
from tests.clients.test_codex_cli import (  # noqa: F401
    round_trip,
    start,
    test_a_text_turn_arrives,
    test_state_stays_with_the_gateway,
    test_the_answer_to_its_output_arrives,
    test_the_command_is_run,
    test_the_demo_model_has_a_command_run,
    test_usage_arrives,
)
