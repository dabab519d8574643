"""Responses objects and stream events held against every published description of them.

The types of the installed `openai` package always judge. Where the specifications lie beside the repository, the Open
Responses document and OpenAI's own do too. A value is sound when no description that knows its type complains.
"""

import json
from collections.abc import Iterable
from functools import lru_cache
from typing import Any, get_args

from jsonschema import Draft202012Validator
from jsonschema.exceptions import ValidationError
from openai.types.responses import Response, ResponseOutputItem, ResponseStreamEvent, Tool
from pydantic import BaseModel, TypeAdapter

from tests.conftest import SHARED

SPECS = SHARED / "specs"
OPEN_RESPONSES = "open-responses.openapi.json"
OPENAI = "openai-chat-and-responses.openapi.json"
HAS_SPECS = (SPECS / OPEN_RESPONSES).exists() and (SPECS / OPENAI).exists()
"""Whether the documents are there. Tests that need them are skipped without them."""

# Four differences between the documents need no exception, since both allow fields that they do not know and the sum
# of the fields satisfies both: `error` is flat at OpenAI and nested in Open Responses, `function_call_arguments.done`
# has a `name` only at OpenAI, `output_text` events need `logprobs` only at OpenAI, and `required_action` in a response
# object is unknown to either.


def event_errors(data: dict[str, Any]) -> list[str]:
    """What is wrong with one stream event, a sentence for each fault; the schema is chosen by `type`."""
    type = str(data.get("type"))
    if type not in package_events():
        return [f"openai package: there is no event {type!r}"]
    found = complaints("openai package", package_schema(package_events()[type]), data)
    # A document that lacks the event is silent: Open Responses has neither `reasoning_text` nor custom calls nor
    # hosted tools, and OpenAI's document may be older than the package.
    if HAS_SPECS and type in open_responses_events():
        found += complaints("Open Responses", open_responses_schema(open_responses_events()[type]), data)
    if HAS_SPECS and type in openai_events():
        found += complaints("OpenAI document", openai_schema(openai_events()[type]), data)
    return found


def response_errors(data: dict[str, Any]) -> list[str]:
    """What is wrong with one response object, a sentence for each fault."""
    found = complaints("openai package", package_schema(Response), data)
    if HAS_SPECS:
        found += complaints("Open Responses", open_responses_schema("ResponseResource"), data)
        found += complaints("OpenAI document", openai_schema("Response"), data)
    return found


def load(name: str) -> dict[str, Any]:
    """A document of the specifications, fresh, so that its reader may amend it."""
    return json.loads((SPECS / name).read_bytes())


def component(document: dict[str, Any], name: str) -> Draft202012Validator:
    """A validator for one schema of an OpenAPI document."""
    return Draft202012Validator({**document, "$ref": f"#/components/schemas/{name}"})


def faults(validator: Draft202012Validator, values: Iterable[Any]) -> list[str]:
    """Where the values do not fit, and why."""
    errors = [inner for value in values for error in validator.iter_errors(value) for inner in explained(error)]
    return [f"{error.json_path}: {error.message}" for error in errors]


def explained(error: ValidationError) -> list[ValidationError]:
    """In place of "fits no branch of the union": what the branch says that is meant by the value's `type`."""
    branches: dict[Any, list[ValidationError]] = {}
    for inner in error.context or ():
        branches.setdefault(inner.relative_schema_path[0], []).append(inner)
    meant = [branch for branch in branches.values() if not any(speaks_of_another_type(inner) for inner in branch)]
    return [leaf for inner in meant[0] for leaf in explained(inner)] if len(meant) == 1 else [error]


def speaks_of_another_type(error: ValidationError) -> bool:
    return error.validator in ("type", "enum", "const") and list(error.relative_path) in ([], ["type"])


def complaints(judge: str, validator: Draft202012Validator, data: dict[str, Any]) -> list[str]:
    return [f"{judge}: {fault}" for fault in faults(validator, [data])]


@lru_cache
def package_schema(type: Any) -> Draft202012Validator:
    return Draft202012Validator(TypeAdapter(type).json_schema())


@lru_cache
def package_events() -> dict[str, type[BaseModel]]:
    """The events of the package by `type`."""
    return {name: model for model in models(ResponseStreamEvent) for name in type_names(model)}


def models(union: Any) -> list[type[BaseModel]]:
    """The members of a union of the package that are objects, however it is wrapped."""
    if isinstance(union, type) and issubclass(union, BaseModel):
        return [union]
    return [model for member in get_args(union) for model in models(member)]


def type_names(union: Any) -> list[str]:
    """What `type` may be in the members of a union of the package."""
    return [name for model in models(union) for name in get_args(model.model_fields["type"].annotation)]


@lru_cache
def open_responses_schema(name: str) -> Draft202012Validator:
    return component(open_responses_document(), name)


@lru_cache
def openai_schema(name: str) -> Draft202012Validator:
    return component(openai_document(), name)


@lru_cache
def open_responses_events() -> dict[str, str]:
    document = open_responses_document()
    reply = document["paths"]["/responses"]["post"]["responses"]["200"]
    return schemas_by_type(document, reply["content"]["text/event-stream"]["schema"]["oneOf"])


@lru_cache
def openai_events() -> dict[str, str]:
    document = openai_document()
    return schemas_by_type(document, document["components"]["schemas"]["ResponseStreamEvent"]["anyOf"])


def schemas_by_type(document: dict[str, Any], branches: list[dict[str, Any]]) -> dict[str, str]:
    """The names of the schemas in a union, by the `type` that each of them asks for."""
    schemas = document["components"]["schemas"]
    names = [branch["$ref"].rpartition("/")[2] for branch in branches]
    objects = [name for name in names if "type" in schemas[name].get("properties", ())]
    return {type: name for name in objects for type in schemas[name]["properties"]["type"]["enum"]}


@lru_cache
def openai_document() -> dict[str, Any]:
    document = load(OPENAI)
    whole = document["components"]["schemas"]["Response"]["allOf"][-1]["properties"]
    # The document wants an object whenever `usage` is there. The service sends null until the tokens are counted, and
    # Open Responses requires the key.
    whole["usage"] = {"anyOf": [whole["usage"], {"type": "null"}]}
    return document


@lru_cache
def open_responses_document() -> dict[str, Any]:
    document = load(OPEN_RESPONSES)
    schemas = document["components"]["schemas"]
    choice = schemas["ResponseResource"]["properties"]["tool_choice"]
    # Open Responses describes functions only. Custom and hosted tools are OpenAI's, with OpenAI's names, and have been
    # judged by OpenAI's schemas; a type that neither side knows stays an error.
    let_through(document, schemas["ItemField"], type_names(ResponseOutputItem))
    let_through(document, schemas["Tool"], type_names(Tool))
    let_through(document, schemas["AllowedToolChoice"]["properties"]["tools"]["items"], type_names(Tool))
    let_through(document, choice, type_names(Response.model_fields["tool_choice"].annotation))
    return document


def let_through(document: dict[str, Any], union: dict[str, Any], types: list[str]) -> None:
    """Adds a branch to a union for the types of the package that it has no branch for."""
    foreign = sorted(set(types) - set(schemas_by_type(document, union["oneOf"])))
    union["oneOf"].append({"type": "object", "required": ["type"], "properties": {"type": {"enum": foreign}}})
