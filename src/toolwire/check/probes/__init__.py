"""What an endpoint is asked, so that it can show what it does: each probe is one short conversation.

Prompts ask for the behaviour in words that a model understands, and quote what matters, which is what the built-in demo
model goes by. A model that does not do as it is asked breaks no rule: that is not observed.
"""

from toolwire.check.probes import calls, choices, compaction, histories, limits, manners, settings, sockets

PROBES = (
    calls.one_call,
    calls.parallel_calls,
    calls.no_arguments,
    choices.choice_none,
    choices.choice_required,
    choices.choice_named,
    choices.one_at_a_time,
    choices.same_turn,
    manners.plain_talk,
    calls.odd_letters,
    calls.huge_arguments,
    calls.cut_call,
    limits.cut_text,
    limits.long_request,
    histories.failed_tool,
    histories.orphans,
    manners.bad_requests,
    manners.unknown_model,
    manners.unknown_choice,
    choices.allowed_tools,
    manners.legacy_functions,
    histories.continued,
    histories.unknown_response,
    settings.told_again,
    sockets.over_socket,
    compaction.compacted,
    histories.resumed,
    manners.broken_turn,
    manners.leaving,
    manners.model_list,
)
"""What matters most comes first, should the budget end."""
