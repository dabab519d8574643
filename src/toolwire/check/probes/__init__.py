"""The probes: short conversations that show how an endpoint behaves.

Prompts describe the expected behaviour to real models, and quote the values that the built-in demo model uses. A model
that does not follow a prompt breaks no rule; the rule is then not observed.
"""

from toolwire.check.probes import calls, choices, gemini, protocol, responses

PROBES = (
    calls.one_call,
    calls.parallel_calls,
    calls.no_arguments,
    choices.choice_none,
    choices.choice_required,
    choices.choice_named,
    choices.one_at_a_time,
    choices.same_turn,
    protocol.text_answer,
    calls.unicode_arguments,
    calls.huge_arguments,
    calls.cut_call,
    protocol.cut_text,
    protocol.long_request,
    calls.failed_tool,
    calls.orphans,
    protocol.bad_requests,
    protocol.unknown_model,
    protocol.unknown_choice,
    choices.allowed_tools,
    protocol.legacy_functions,
    gemini.returned_turn,
    gemini.array_stream,
    gemini.token_count,
    responses.continued,
    responses.unknown_response,
    responses.echoed_settings,
    responses.over_socket,
    responses.compacted,
    responses.resumed,
    protocol.broken_turn,
    protocol.leaving,
    protocol.model_list,
)
"""In order of importance, in case the budget runs out."""
