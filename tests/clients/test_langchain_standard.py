"""What LangChain asks of every chat model, asked of its own clients on servers of every kind, with the gateway between."""

from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from langchain_anthropic import ChatAnthropic
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, HumanMessage
from langchain_openai import ChatOpenAI
from langchain_tests.integration_tests import ChatModelIntegrationTests
from pydantic import SecretStr

from tests.clients.servers import KINDS
from tests.clients.stage import Stage

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.filterwarnings("ignore::UserWarning"),  # what LangChain advises its users
]


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="session", autouse=True)
async def one_event_loop(anyio_backend: str) -> AsyncIterator[None]:
    """LangChain keeps its connections for as long as the process lives, so the loop has to stay as well."""
    yield  # noqa: PT022 - the loop stays for as long as a fixture waits here


@pytest.fixture
def benchmark() -> None:
    """Of a plugin that is switched off; the test that wants it is skipped."""


@pytest.fixture
def vcr() -> None:
    """The same."""


def not_really_a_picture(url: str, **options: Any) -> httpx.Response:
    return httpx.Response(200, content=url.encode())


@pytest.fixture(autouse=True)
def nothing_is_fetched(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tests show pictures and documents from the internet; any bytes will do."""
    monkeypatch.setattr(httpx, "get", not_really_a_picture)
    monkeypatch.setenv("LANGCHAIN_TESTS_USER_AGENT", "toolwire")


class Standard(ChatModelIntegrationTests):
    """The tests for one client, on every kind of server."""

    stage: Stage
    kind: str

    @pytest.fixture(autouse=True, params=KINDS)
    def on_a_kind_of_server(self, request: pytest.FixtureRequest, stage: Stage) -> None:
        self.stage, self.kind = stage, request.param

    @property
    def model_override_value(self) -> str:
        return f"{self.kind}/another"

    @property
    def supports_image_inputs(self) -> bool:
        return True

    @property
    def supports_image_urls(self) -> bool:
        return True

    @property
    def supports_image_tool_message(self) -> bool:
        return True

    @property
    def supports_pdf_inputs(self) -> bool:
        return True

    @property
    def supports_pdf_tool_message(self) -> bool:
        return True

    def invoke_with_cache_read_input(self, *, stream: bool = False) -> AIMessage:
        model = self.chat_model_class(**self.chat_model_params)
        if not stream:
            return model.invoke("Hello")
        first, *others = model.stream("Hello")
        return sum(others, first)

    def invoke_with_reasoning_output(self, *, stream: bool = False) -> AIMessage:
        return self.invoke_with_cache_read_input(stream=stream)


def counting(*details: str) -> dict[str, list[str]]:
    """Which tokens are counted apart, invoked and streamed."""
    return {"invoke": [*details], "stream": [*details]}


class OpenAIStandard(Standard):
    @property
    def chat_model_class(self) -> type[BaseChatModel]:
        return ChatOpenAI

    @property
    def chat_model_params(self) -> dict[str, Any]:
        return {
            "model": f"{self.kind}/obliging",
            "base_url": self.stage.gateway.base_url,
            "api_key": "test",
            "max_retries": 0,
        }

    @property
    def supports_json_mode(self) -> bool:
        return True

    @property
    def supported_usage_metadata_details(self) -> Any:
        return counting("cache_read_input", "reasoning_output")


class TestChatCompletions(OpenAIStandard):
    @property
    def chat_model_params(self) -> dict[str, Any]:
        return {**super().chat_model_params, "use_responses_api": False, "stream_usage": True}

    @property
    def supports_audio_inputs(self) -> bool:
        return True


class TestResponses(OpenAIStandard):
    @property
    def chat_model_params(self) -> dict[str, Any]:
        return {**super().chat_model_params, "use_responses_api": True}


class TestMessages(Standard):
    @property
    def chat_model_class(self) -> type[BaseChatModel]:
        return ChatAnthropic

    @property
    def chat_model_params(self) -> dict[str, Any]:
        return {
            "model": f"{self.kind}/obliging",
            "base_url": self.stage.gateway.url,
            "api_key": "test",
            "max_retries": 0,
        }

    @property
    def supports_anthropic_inputs(self) -> bool:
        return True

    @property
    def supported_usage_metadata_details(self) -> Any:
        return counting("cache_read_input")


@pytest.mark.parametrize("kind", ["responses", "messages"])
def test_the_name_of_a_speaker_is_left_out_with_a_note(stage: Stage, kind: str):
    model = f"{kind}/named"
    client = ChatOpenAI(model=model, base_url=stage.gateway.base_url, api_key=SecretStr("test"), max_retries=0)
    client.invoke([HumanMessage("Hello.", name="Ann")])
    assert stage.notes(model, 1) == [{"field_dropped": 1}]
