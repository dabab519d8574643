"""The rows of the museum of tool-call faults that are this part's: what must never happen, one line each.

A row's slug is the id of its test, `test_museum[slug]`. Its number leads to the reports it was collected from.
"""

import msgspec


class Row(msgspec.Struct, frozen=True):
    """One fault, stated as what must hold instead."""

    number: str
    slug: str
    statement: str
    theme: str


_THEMES = {
    "parallel": """
        BM-003 par-sameidx-newid       Two ids under one index are two calls
        BM-005 par-counter-reset       Calls that come without index in separate chunks count on through the stream
        BM-006 par-interleave          A piece without id belongs to the call at its index, not to the latest
        BM-007 par-anthropic-merge     Calls back to back stay apart: one ends before the next begins
        BM-009 par-multi-json-one-idx  A second whole object with a name under the same index is a second call
        BM-010 idx-missing             A missing index is no error; what leaves always has one
        BM-013 par-dedup-legit         Two equal calls are two calls, unless the operator asked for deduplication
        BM-014 par-ollama-idx0         A missing index is not 0, and 0 for everybody does not merge calls
    """,
    "identity": """
        BM-017 id-empty-cont           An empty id or name on a later piece says nothing
        BM-018 name-resend-full        A name that is sent again is not appended
        BM-019 name-fragmented         A name that comes in pieces is announced whole
        BM-020 type-concat             Only arguments are appended; type and id leave once
        BM-021 chunk-id-varies         Every chunk of an answer carries the same id, time and model
        BM-023 id-null-cont            Null on a later piece says nothing, and null never leaves
        BM-024 id-never                A call without id gets one, once, the same everywhere
        BM-026 id-string-null          The words for null are not an id
        BM-027 name-guess              A missing name is inferred only when there is one it can be
        BM-028 tx-harmony-name         Control tokens in a name are cut off if a declared name remains
    """,
    "arguments": """
        BM-029 args-delta-plus-done    Arguments that come as deltas and again as totals leave once
        BM-031 args-snapshot-stream    A server that streams totals is a matter of its profile, not of guessing
        BM-032 args-empty-string       No arguments are {}, never the empty string
        BM-033 args-empty-drop         A call exists from its start, not from its first argument
        BM-034 args-final-delta        A call that comes whole in the last piece has its arguments
        BM-035 args-finish-strip       A chunk with a call and a finish loses neither
        BM-036 args-leak-content       Arguments are not printed into the content as well
        BM-037 args-start-input        Arguments that came whole leave as fragments after the start
        BM-038 args-double-encoded     No layer of JSON is added or removed
        BM-039 args-as-object          Arguments given as an object leave as a string, in their order
        BM-040 args-truncated-history  Half arguments in the history are no crash
        BM-041 seed-args-outside       Arguments leave inside function and nowhere else
        BM-042 num-float               Numbers keep their digits
        BM-045 args-malformed-eager    Malformed arguments are passed on as they are, never replaced by {}
        BM-046 args-tgi-dict           Object arguments, one id for all calls and a wrong finish are put right
        BM-048 json-nan                What leaves is strict JSON, whatever numbers the model wrote
    """,
    "finish": """
        BM-049 fin-stop                A turn with calls ends with tool_calls
        BM-051 fin-mid                 A finish in the middle of a stream ends nothing
        BM-052 fin-with-delta          The last piece of a call counts although a finish comes with it
        BM-053 fin-anthropic-mixed     Text before a call does not change how the turn ends
        BM-054 fin-absent              A stream without finish reason is finished by us
        BM-055 fin-tooluse-noblock     A turn that claims calls and has none ends with stop
        BM-056 fin-length-hidden       A call cut by the token limit ends with length and is not repaired
        BM-057 fin-python-none         The word None is no finish reason
        BM-059 ns-tool-nonstream       Streamed and plain answers say the same
        BM-060 fin-unknown-reason      An unknown reason keeps the calls and is not passed off as a normal stop
        BM-061 fin-incomplete          An incomplete response says length or content_filter, and keeps its usage
    """,
    "content": """
        BM-063 role-first-missing      The role comes first, also when the turn begins with a call
        BM-064 tc-null                 tool_calls may come as null or empty, and leaves only with calls in it
        BM-065 choices-absent          A chunk may lack choices; ours never does
        BM-066 content-null-vs-empty   Null, empty and absent content beside calls mean the same
        BM-067 content-empty-assistant An empty assistant message in the history is accepted
        BM-070 ord-text-after-tool     Text stays before the calls it came before
        BM-071 ord-text-between        Text between calls is kept
        BM-072 cursor-empty-array      An empty list of parts is no content
        BM-073 stop-after-first        All calls of a turn are delivered; what a policy cuts is reported
    """,
    "lifecycle": """
        BM-074 rs-completed-empty      The last event holds every item, as it was told when it was done
        BM-075 rs-upstream-empty       An empty final output erases nothing, and one with more in it adds that
        BM-076 rs-item-done-missing    A call that was streamed and never closed is closed at the end
        BM-077 rs-missing-fields       No event of the lifecycle is missing, and none lacks its ids, places and objects
        BM-079 rs-late-text-done       A late done closes its own item and no other
        BM-080 as-seed-required-action A turn with calls is completed, and nobody gets events nobody asked for
        BM-081 rs-seq                  Numbers count from 0 without a gap, whatever is dropped, merged or added
        BM-083 rs-echo-tools           Tools come back with explicit nulls, and everything fits the schemas
        BM-086 rs-nonstream-drop       A plain response has its calls, and each kind of call its own events
    """,
    "blocks": """
        BM-087 am-overlap              One block is open at a time, and blocks are counted without a gap
        BM-089 am-reasoning-split      ReasoningCache between the words do not cut the text to pieces
        BM-090 am-usage-null           Token counts are numbers, also when nobody counted
        BM-091 am-empty-text           A message without words has no block of text
        BM-093 am-tool-as-text         A call is a block, not a sentence about one
        BM-095 am-block-not-found      A delta is for the open block, also when a server mixes its calls
        BM-097 am-first-delta-lost     The piece that opens a block is in it
    """,
    "reasoning": """
        BM-100 rz-reasoning-alone      A thought whose answer was trimmed away goes with it
        BM-101 rz-thinking-first       A signed thought comes back before its calls, and none is made up
        BM-103 rz-gemini-sig           A signature on a call returns with the call
        BM-104 rz-foreign-sig          A signature is shown to its origin and to no other vendor
        BM-107 rz-wrong-provider-400   A signature that its server cannot read does not wedge the conversation
    """,
    "history": """
        BM-108 hx-missing-result       A call without result gets a placeholder, or the request is refused
        BM-111 hx-skip-half-pair       A call and its result are kept or refused together
        BM-112 hx-split-assistants     Calls in a row are one turn of the assistant
        BM-113 hx-split-anthropic      Calls in a row are one message, and so are their results
        BM-114 hx-multipart-rs         Text and calls of one turn are items of their own
        BM-115 hx-user-between         A message between results does not close the turn too early
        BM-116 hx-dup-ids              An id that is used twice pairs each call with its own result
        BM-117 hx-result-no-id         A result without id answers the only call it can
        BM-118 hx-id-variants          A result may name its call by the id of the item
        BM-120 rs-unknown-input        Items we do not know go on as they came
        BM-121 args-json-history-400   Malformed arguments in the history are nobody's crash
        BM-123 hx-cross-type-callid    A call and an output with the same id are two items
        BM-125 hx-output-array         An output may be a text, parts, or any JSON
        BM-126 hx-empty-result         An empty result is a result
        BM-128 hx-dev-between          A message between a call and its output separates nothing
        BM-129 hx-steer-lost           What the user says together with results is delivered
    """,
    "limits": """
        BM-132 lim-id-charset          Ids fit the server's letters, and two of them never become one
        BM-133 lim-id-mistral          Ids have the length a server insists on, the same in every turn
        BM-135 lim-name-collide        Long names stay apart when they are cut, and come back whole
        BM-136 lim-name-charset        Names fit the server's letters, in tools and in history, and come back
    """,
    "parameters": """
        BM-137 tc-named-dropped        A tool that is asked for by name is asked for by name
        BM-140 tc-allowed-parallel     Only allowed tools are called, one at a time if so asked
        BM-141 ptc-ignored             No parallel calls means one call, and the rest is reported
        BM-143 args-eager-flag         Fields of a tool that we do not know go to a server of the same dialect
        BM-144 cursor-mixed            A request may be written in both forms at once
        BM-145 req-unknown-stripped    Fields we do not know survive, or it is said
        BM-146 obs-native-required     Structured calls are there in every output mode
        BM-147 cc-cache-control        Cache markers are accepted, and never added
        BM-148 tools-empty-array       An empty list of tools is no list
        BM-149 mt-default              No limit of tokens is made up
        BM-151 param-lost              What is accepted is passed on, or it is said
    """,
    "schema": """
        BM-152 sch-strict-default      Whether a tool is strict means the same on both sides
        BM-153 sch-strict-hard         A format is strict only if the client says so
        BM-154 sch-strict-unchecked    Strictness that a server does not know is not dropped in silence
        BM-156 sch-param-named-properties  A parameter may have the name of a keyword
        BM-157 sch-ref-inline          References are kept, or written out where a server knows none
        BM-158 sch-top-anyof           Alternatives at the top of a schema do not cost the request
        BM-159 sch-type-array          Types in a list and constants are rewritten only for servers that refuse them
    """,
    "usage": """
        BM-161 use-forced-chunk        The usage chunk is for clients that asked for it
        BM-162 use-cache-double        Cache tokens told twice count once
        BM-163 use-cache-semantics     Cached tokens are part of the input on one side and not on the other
        BM-164 use-anthropic-final     Input tokens known at the end still reach the client
        BM-165 use-combined-chunk      Content and usage in one frame: both count
        BM-166 cnt-tokens              Counting tokens looks at system and tools too
    """,
    "framing": """
        BM-167 sse-crlf                CR, LF and CRLF end lines, and events leave while the connection is open
        BM-168 sse-crlf-split          A line end cut in two is one line end
        BM-171 sse-comment-as-data     A comment never becomes data
        BM-173 sse-data-colon          A frame that cannot be read is skipped and counted, wherever it stands
        BM-174 sse-ping-blank          Our keepalive is one comment line, and we send no event ids
        BM-175 sse-comment-strict-client  A keepalive stands between events and can be put off
        BM-176 sse-utf8-split          A character cut in two stays one; bytes that are no text are an error
        BM-177 sse-args-bytechunk      Arguments are cut between characters only
        BM-178 uni-surrogate           Halves of a surrogate pair are joined, and a lone one costs no arguments
        BM-179 tr-nginx-buffer         A stream's headers forbid buffering and compressing
        BM-181 sse-done-json           [DONE] is the sentinel only when it is all of the data
        BM-182 sse-nonjson             A web page inside a stream is an error, not an empty answer
    """,
    "transport": """
        BM-185 err-silent-trunc        A stream that breaks is an error, not an end
        BM-187 err-inband-ignored      An error inside a stream reaches the client
        BM-188 err-bare-json           An error without framing is read; ours is framed
        BM-190 err-disconnect-mid      A client that leaves takes the upstream request with it
        BM-192 sse-dup-lifecycle       Nothing is asked again once the client has seen something
        BM-193 sse-forced-stream       A stream for a plain request becomes one answer
        BM-194 sse-nonstream-to-stream A plain answer for a stream request becomes a stream
        BM-195 ws-upgrade              A client that tries WebSocket first gets an answer it can work with
        BM-196 ws-terminal             A turn that fails on a socket ends there, and the socket goes on
        BM-197 cors-obsidian           A page in a browser may ask, and read our headers
        BM-198 ping-dropped            Silence upstream is not silence downstream
        BM-199 idle-timer              No bytes and no progress are two clocks
    """,
    "textual": """
        BM-203 tx-empty-args           A textual call without arguments has the arguments {}
        BM-204 tx-false-positive-json  JSON without the tags is text
        BM-205 tx-swallowed            What looked like a call and was none is released
        BM-206 tx-in-think             A tag that is only mentioned is text
        BM-207 tx-text-before          Text before a call stays text
        BM-209 tx-close-in-arg         The closing tag inside a JSON string ends nothing, and no block holds without bound
        BM-210 tx-close-in-xml-arg     Values between tags lose one line end at each side, and calls stay apart
        BM-211 tx-unclosed-eos         A whole call without its closing tag is a call, a cut one is text
        BM-212 tx-unclosed-terminal    A call that was begun and is cut ends once
        BM-213 tx-no-end-marker        A notation without end marker ends with the text
        BM-214 tx-whitespace-tag       Other spellings of the tag are text, released at once
        BM-215 tx-bare-name-tag        Tags that are no notation stay text
        BM-216 tx-entities-decoded     Entities, HTML and CDATA in a value stay as they are
        BM-218 tx-big-string-buffered  A long string flows while it is written
        BM-219 tx-double-source        The same call in structure and in text is one call
        BM-220 tx-literal-newline      A raw line end inside a JSON string is repaired, once
        BM-221 tx-multi-blocks         All blocks of a text are calls, in order
        BM-222 tx-dup-in-content       The markup of a call is not in the content too
        BM-223 tx-whole-single-delta   A text in one piece reads like the same text in many
        BM-224 tx-zeroarg-bare         A declared name alone between the tags is a call
        BM-226 sec-text-scope          Only what the model answers now is read for calls
        BM-227 tx-usetool-partial-name A name is announced when it is whole
        BM-229 tx-usetool-roundtrip    Arguments survive the way into <use_tool> and back, or it is said
        BM-230 tx-harmony-leak         Harmony channels are read, not shown
        BM-232 tx-invoke-leak          The kin of <invoke> is read where it is meant and shown where it is quoted
        BM-233 tx-hide-no-exec         Nothing is hidden that did not become a call
    """,
    "tools": """
        BM-249 cu-format-dropped       A custom tool keeps its grammar, and its call its text
        BM-250 cu-not-unwrapped        A custom call that comes wrapped in JSON is unwrapped
        BM-251 cu-history              Custom calls return as what they were, and pair with their own kind
        BM-252 cu-chat-shape           Custom tools are read flat and nested, and answered as chat has them
        BM-253 bi-reject-all           A tool the backend cannot run does not cost the others
        BM-254 bi-silent-drop          A tool the backend can run reaches it
        BM-256 ns-not-restored         A call names its namespace wherever it is told
        BM-257 ord-server-tool         Calls of the server keep their place among the others
        BM-258 bi-server-tool-dead     A server tool of one vendor is not dead weight at another
        BM-259 bi-fail-closed          A tool that cannot be read is refused by its place
    """,
    "app-server": """
        BM-235 as-no-completed         A turn whose end is never told ends when its thread is found idle, or with an error
        BM-236 as-empty-custom-stall   A call that is only begun is not released, and silence does not last for ever
        BM-237 as-stop-slow            A client that leaves stops the turn at once, and calls that come later are declined
        BM-239 as-error-codes          One code for many faults: their words tell them apart, and reach the client
        BM-240 as-unknown-method-loop  What nobody serves is refused once for each id, and the log does not overflow
        BM-241 as-mcp-noise            A result that answers no call is not passed on, and is counted
        BM-242 as-text-twice           A message that is streamed and told again is told once
        BM-243 as-no-delta             A message that is not streamed is told all the same
        BM-244 as-dyn-item             A call that is shown as an item too is one call
        BM-245 as-dyn-failure          A result that failed is told as one
        BM-246 as-dyn-null-args        A call without arguments has the arguments {}
        BM-248 as-stdio-64k            A line may be long, up to a limit that is stated
    """,
    "images": """
        BM-262 img-wrong-shape         An image in a result is written in the server's words
    """,
    "choices": """
        BM-263 choice-idx              Calls are counted within their choice
        BM-265 legacy-fc-request       functions and function_call work, in both directions
    """,
    "cost": """
        BM-266 perf-quadratic          Twice the deltas take twice the time and memory
        BM-268 tr-capture-mem          Nothing is kept for the log, and a recording is bounded
        BM-269 tr-buffer-clear         A buffer that is full is an error that names the limit
    """,
    "state": """
        BM-271 st-prev-ignored         What came before is put in front, or the request is refused
        BM-273 st-chain-fallback       The chain is ours: no upstream is asked for it
    """,
}


def _read(theme: str, lines: str) -> list[Row]:
    rows = [line.split(maxsplit=2) for line in lines.strip().splitlines()]
    return [Row(number, slug, statement, theme) for number, slug, statement in rows]


ROWS = {row.slug: row for theme, lines in _THEMES.items() for row in _read(theme, lines)}
