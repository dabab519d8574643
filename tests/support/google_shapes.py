"""Answers of Gemini, held against the types of the installed `google-genai` package, which refuse unknown fields."""

from typing import Any

from google.genai.types import GenerateContentResponse
from pydantic import ValidationError

Json = dict[str, Any]
STATUSES = {
    400: "INVALID_ARGUMENT",
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    405: "UNIMPLEMENTED",
    408: "DEADLINE_EXCEEDED",
    409: "ABORTED",
    413: "INVALID_ARGUMENT",
    429: "RESOURCE_EXHAUSTED",
    500: "INTERNAL",
    502: "UNAVAILABLE",
    503: "UNAVAILABLE",
    504: "DEADLINE_EXCEEDED",
    529: "UNAVAILABLE",
}


def answer_faults(data: Json) -> list[str]:
    """What is wrong with a chunk, a whole answer, or an error in their place."""
    if "error" in data:
        return google_error_faults(data)
    try:
        answer = GenerateContentResponse.model_validate(data)
    except ValidationError as error:
        return [f"{fault['loc']}: {fault['msg']}" for fault in error.errors()]
    missing = [name for name in ("candidates", "modelVersion", "responseId") if name not in data]
    roles = [candidate.content and candidate.content.role for candidate in answer.candidates or ()]
    return [*missing, *(f"role {role!r}" for role in roles if role != "model")]


def google_error_faults(body: Json) -> list[str]:
    """What is wrong with an error object."""
    error: Json = body.get("error", {})
    if body.keys() != {"error"} or not error.keys() <= {"code", "message", "status", "details"}:
        return [f"there are other fields: {body}"]
    details: list[Json] = error.get("details", [])
    faults = [f"a detail without a type: {each}" for each in details if "@type" not in each]
    if not isinstance(error["message"], str) or STATUSES.get(error["code"]) != error["status"]:
        faults.append(f"code, status and message do not agree: {error}")
    return faults
