"""Servers that want a parameter in every URL, and their key in a header of its own, as Azure does."""

from collections.abc import Iterator

import httpx
import pytest

from tests.support.frames import completed, created, stream, text
from tests.support.gateway import Gateway, backend, chat_body
from tests.support.upstream import Asked, Reply, Upstream

QUERY = '{ "api-version" = "v1", "with space" = "ü&" }'
WRITTEN = "api-version=v1&with+space=%C3%BC%26"


@pytest.fixture(scope="module")
def gateway(upstream: Upstream, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    upstream.replies["azure-model"] = Reply([stream(created(), text("Hi."), completed())])
    azure = f'[[backends]]\npreset = "azure"\nbase_url = "{upstream.url}"\nquery = {QUERY}\nmodels = ["gpt-*"]\n'
    client = backend(upstream.url, "client", key_header='"x-api-key"')
    client += backend(upstream.url.replace("//", "//me:p%40ss@"), "login", key_header='"x-api-key"')
    server = Gateway(tmp_path_factory.mktemp("azure"), azure + client, AZURE_OPENAI_API_KEY=" k-1 ")
    yield server
    server.stop()


def asked(gateway: Gateway, upstream: Upstream, http: httpx.Client, model: str, content: str, key: str = "") -> Asked:
    body = chat_body(model, stream=True, messages=[{"role": "user", "content": content}])
    headers = {"authorization": f"Bearer {key}"} if key else {}
    assert http.post(f"{gateway.base_url}/chat/completions", json=body, headers=headers).status_code == 200
    return upstream.asked[-1]


@pytest.mark.parametrize("content", ["Hello", pytest.param("x" * 1_200_000, id="large")])
def test_every_request_has_the_parameters_and_the_key_in_its_header(
    gateway: Gateway, upstream: Upstream, http: httpx.Client, content: str
):
    last = asked(gateway, upstream, http, "azure/azure-model", content)
    assert (last.path, last.query) == ("/v1/responses", WRITTEN)
    assert (last.headers["api-key"], "authorization" in last.headers) == ("k-1", False)


def test_the_list_of_models_is_asked_for_in_the_same_way(gateway: Gateway, upstream: Upstream, http: httpx.Client):
    listed = http.get(f"{gateway.base_url}/models").json()["data"]
    assert {"gpt-5", "gpt-5-mini"} < {model["id"] for model in listed}
    [last] = [each for each in upstream.asked if each.path.startswith("/v1/models?api-version")]
    assert (last.path, last.headers["api-key"]) == (f"/v1/models?{WRITTEN}", "k-1")


def test_the_key_of_a_client_goes_into_that_header_too(gateway: Gateway, upstream: Upstream, http: httpx.Client):
    last = asked(gateway, upstream, http, "client/azure-model", "Hello", key="theirs")
    assert (last.headers["x-api-key"], last.query, "authorization" in last.headers) == ("theirs", "", False)


@pytest.mark.parametrize("content", ["Hello", pytest.param("x" * 1_200_000, id="large")])
def test_a_user_in_the_address_is_sent_as_one(gateway: Gateway, upstream: Upstream, http: httpx.Client, content: str):
    last = asked(gateway, upstream, http, "login/azure-model", content, key="theirs")
    assert (last.headers["authorization"], last.headers["x-api-key"]) == ("Basic bWU6cEBzcw==", "theirs")
