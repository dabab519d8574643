"""What of the museum has to wait for later parts, and for what.

`LATER` holds rows without a test. `REMAINS` holds rows that are tested as far as there is something to test, with what
is left of them.
"""

_CHAT = "chat backend"
_MESSAGES = "messages dialect and backend"
_CODEX = "codex backend"

LATER = {
    "fin-python-none": f"{_CHAT}: finish reasons that mean nothing",
    "hx-split-anthropic": f"{_MESSAGES}: one message of calls, one of results",
    "use-cache-double": f"{_MESSAGES}: usage told in message_start and message_delta",
    "use-anthropic-final": f"{_MESSAGES}: usage in message_delta",
    "cnt-tokens": f"{_MESSAGES}: count_tokens",
    "tx-no-end-marker": "notation of Mistral",
    "tx-harmony-leak": "notation of Harmony",
    "cu-not-unwrapped": f"{_CHAT}: custom tools lowered to functions, and their calls raised again",
    "ord-server-tool": f"{_MESSAGES}: server_tool_use among the calls",
    "bi-server-tool-dead": f"{_MESSAGES}: web_search_20250305 at other vendors",
}

REMAINS = {
    "par-anthropic-merge": f"{_MESSAGES}: one block per call",
    "args-start-input": f"{_MESSAGES}: an empty input at the start, then input_json_delta",
    "args-double-encoded": f"{_MESSAGES}: unwrapped where an object is needed",
    "args-truncated-history": f"{_MESSAGES}: a 400 or a wrapped text where an object is needed",
    "args-malformed-eager": f"{_MESSAGES}: the marker for input that is no object",
    "json-nan": f"{_MESSAGES}: the marker for input that is no object",
    "fin-mid": f"{_CHAT}: the finish held until the stream ends",
    "fin-absent": f"{_CHAT}: a stream that ends with [DONE] alone",
    "fin-anthropic-mixed": f"{_MESSAGES}: stop_reason tool_use",
    "fin-tooluse-noblock": f"{_MESSAGES}: the claim and its note",
    "ns-tool-nonstream": f"{_MESSAGES}: the same matrix",
    "fin-unknown-reason": f"{_MESSAGES}: pause_turn, refusal and their kin",
    "fin-incomplete": f"{_MESSAGES}: max_tokens and refusal",
    "role-first-missing": f"{_MESSAGES}: a message that begins with tool_use",
    "content-null-vs-empty": f"{_CHAT}: what each server wants beside calls",
    "ord-text-after-tool": f"{_MESSAGES}: the same order in its history",
    "ord-text-between": f"{_MESSAGES}: positions kept",
    "rs-missing-fields": f"{_CHAT}: the same events from its chunks",
    "rs-late-text-done": f"{_CHAT}, {_MESSAGES}: the chain of translators",
    "rs-nonstream-drop": f"{_CHAT}, {_MESSAGES}: plain replies of theirs",
    "hx-missing-result": f"{_MESSAGES}: is_error",
    "hx-split-assistants": f"{_CHAT}: one assistant message, then the results",
    "hx-multipart-rs": f"{_MESSAGES}: a message of text and calls",
    "rs-unknown-input": f"{_CHAT}, {_MESSAGES}: items dropped with a note",
    "args-json-history-400": f"{_MESSAGES}: a 400 or a wrapped text where an object is needed",
    "hx-output-array": f"{_CHAT}, {_MESSAGES}: parts in their words",
    "hx-empty-result": f"{_CHAT}, {_MESSAGES}: a placeholder for servers that refuse nothing",
    "hx-dev-between": f"{_CHAT}: an output of a Responses client moved to its call",
    "hx-steer-lost": f"{_CODEX}: a turn that waits for its results",
    "tc-named-dropped": f"{_MESSAGES}: tool_choice of type tool",
    "tc-allowed-parallel": f"{_MESSAGES}: tools filtered, disable_parallel_tool_use",
    "ptc-ignored": f"{_MESSAGES}: disable_parallel_tool_use",
    "args-eager-flag": f"{_MESSAGES}: passed on or stripped by profile",
    "cursor-mixed": "chat dialect: input and instructions in place of messages",
    "req-unknown-stripped": f"{_MESSAGES}: the same",
    "cc-cache-control": f"{_MESSAGES}: hoisted to the block of a result",
    "mt-default": f"{_MESSAGES}: the limit that it insists on",
    "use-cache-semantics": f"{_MESSAGES}: cached tokens taken out and added back",
    "use-combined-chunk": f"{_CHAT}: a chunk with content, finish and usage",
    "sse-done-json": f"{_MESSAGES}: no [DONE] there",
    "err-inband-ignored": f"{_MESSAGES}: error events",
    "err-disconnect-mid": f"{_MESSAGES}, {_CODEX}: the same there",
    "tx-in-think": "notation of <think>: the tag is reasoning",
    "tx-text-before": "notation of <think>: what stands before is reasoning",
    "sec-text-scope": "writing history into a textual notation",
    "tx-invoke-leak": "notations of <invoke> and its prefixes: the call itself",
    "cu-format-dropped": f"{_CHAT}: the grammar in a description",
    "cu-history": f"{_CHAT}: custom calls as functions",
    "bi-reject-all": f"{_CHAT}: types that each server allows",
    "ns-not-restored": f"{_CHAT}: names that hold their namespace, and back",
    "bi-fail-closed": f"{_MESSAGES}: the same there",
    "choice-idx": f"{_CHAT}: n above 1 carried through",
    "st-prev-ignored": f"{_CHAT}: the chain in its words",
}
