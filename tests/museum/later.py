"""What of the museum has to wait for later parts, and for what.

`LATER` holds rows without a test. `REMAINS` holds rows that are tested as far as there is something to test, with what
is left of them.
"""

_CHAT = "chat backend"
_MESSAGES = "messages dialect and backend"
_RESPONSES = "responses dialect"

LATER = {
    "fin-absent": f"{_CHAT}, {_RESPONSES}: a stream that ends with [DONE] alone",
    "fin-python-none": f"{_CHAT}: finish reasons that mean nothing",
    "use-cache-double": f"{_MESSAGES}: usage told in message_start and message_delta",
    "use-anthropic-final": f"{_MESSAGES}: usage in message_delta",
    "cnt-tokens": f"{_MESSAGES}: count_tokens",
    "ws-upgrade": f"{_RESPONSES}: WebSocket",
    "ws-terminal": f"{_RESPONSES}: WebSocket",
    "tx-no-end-marker": "notation of Mistral",
    "tx-harmony-leak": "notation of Harmony",
}

REMAINS = {
    "par-anthropic-merge": f"{_MESSAGES}: one block per call",
    "name-guess": f"{_RESPONSES}: how the item ends",
    "args-start-input": f"{_MESSAGES}: an empty input at the start, then input_json_delta",
    "args-double-encoded": f"{_MESSAGES}: unwrapped where an object is needed",
    "args-truncated-history": f"{_MESSAGES}: a 400 or a wrapped text where an object is needed",
    "args-malformed-eager": f"{_MESSAGES}: the marker for input that is no object",
    "json-nan": f"{_MESSAGES}: the marker for input that is no object",
    "fin-mid": f"{_CHAT}: the finish held until the stream ends",
    "fin-anthropic-mixed": f"{_MESSAGES}: stop_reason tool_use",
    "fin-tooluse-noblock": f"{_MESSAGES}: the claim and its note",
    "ns-tool-nonstream": f"{_RESPONSES}, {_MESSAGES}: the same matrix",
    "fin-unknown-reason": f"{_MESSAGES}: pause_turn, refusal and their kin",
    "fin-incomplete": f"{_RESPONSES}, {_MESSAGES}: length and refusal in their words",
    "role-first-missing": f"{_MESSAGES}: a message that begins with tool_use",
    "content-null-vs-empty": f"{_CHAT}: what each server wants beside calls",
    "ord-text-after-tool": f"{_RESPONSES}, {_MESSAGES}: the same order in their histories",
    "ord-text-between": f"{_RESPONSES}, {_MESSAGES}: positions kept",
    "use-cache-semantics": f"{_MESSAGES}: cached tokens taken out and added back",
    "use-combined-chunk": f"{_CHAT}: a chunk with content, finish and usage",
    "sse-done-json": f"{_MESSAGES}: no [DONE] there",
    "err-inband-ignored": f"{_MESSAGES}: error events",
    "err-disconnect-mid": f"{_RESPONSES}, {_MESSAGES}: the same there",
    "tx-in-think": "notation of <think>: the tag is reasoning",
    "tx-text-before": "notation of <think>: what stands before is reasoning",
    "sec-text-scope": "writing history into a textual notation",
    "tx-invoke-leak": "notations of <invoke> and its prefixes: the call itself",
    "choice-idx": f"{_CHAT}: n above 1 carried through",
}
