"""What a server says when it refuses a part of a request, and when it misses one."""

import pytest

from toolwire.backends.failures import RefusedPart, find_refused_part
from toolwire.core.errors import Failure

ALWAYS = RefusedPart("reasoning", always=True)
ONCE = RefusedPart("reasoning", always=False)
INCLUDE = RefusedPart("include", always=True)


@pytest.mark.parametrize(
    ("message", "param", "code", "expected"),
    [
        ("messages.1.assistant.reasoning_content: property 'messages.1.assistant.reasoning_content' is unsupported", "validation_error", "wrong_api_format", ALWAYS),
        ("'messages.2' : for 'role:assistant' the following must be satisfied[('messages.2' : property 'reasoning' is unsupported)]", None, "", ALWAYS),
        ("Unknown field", "messages[2].reasoning", "", ALWAYS),
        ("Unrecognized request argument supplied: reasoning_details", None, "", ALWAYS),
        ('[{"type":"extra_forbidden","loc":["body","messages",2,"assistant","reasoning_content"],"msg":"Extra inputs are not permitted","input":"It is missing."}]', None, "", ALWAYS),
        ("reasoning_content cannot be used here", None, "", ALWAYS),
        ("The encrypted content for item rs_1 could not be verified.", None, "invalid_encrypted_content", ONCE),
        ("messages.1.content.0: Invalid `signature` in `thinking` block", None, "", ONCE),
        ("Corrupted thought signature.", None, "400", ONCE),
        ("Thought signature is not valid", None, "", ONCE),
        ("Encrypted content is not supported with this model.", "include", "", INCLUDE),
        ("Encrypted content is not supported with this model.", None, "", INCLUDE),
        ("Unknown parameter: 'include'.", None, "", INCLUDE),
        ("Invalid value: 'include[0]'", "include[0]", "", INCLUDE),
        ("The `reasoning_content` in the thinking mode must be passed back to the API.", None, "invalid_request_error", None),
        ("Missing `reasoning_content` field in the assistant message at message index 2.", None, "", None),
        ("thinking is enabled but reasoning_content is missing in assistant tool call message at index 2", None, "", None),
        ("property 'reasoning' is unsupported", None, "", None),
        ("Unsupported parameter: 'reasoning.effort' is not supported with this model.", "reasoning.effort", "", None),
        ("messages: 'reasoning_effort' is unsupported", "reasoning_effort", "", None),
        ("Please include a user message.", "messages", "", None),
        ("Function call is missing a thought_signature in functionCall parts.", None, "", None),
        ("boom", None, "", None),
    ],
)  # fmt: skip
def test_a_refusal_names_what_is_refused(message: str, param: str | None, code: str, expected: RefusedPart | None):
    for status in (400, 422):
        assert find_refused_part(Failure(status, code, message, param=param)) == expected
    assert find_refused_part(Failure(500, code, message, param=param)) is None
