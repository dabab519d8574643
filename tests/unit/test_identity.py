"""Which call a fragment belongs to. What real servers do is in tests/museum; this is the table's own behaviour."""

import pytest
from msgspec.structs import replace

from toolwire.core.call_index import Fragment
from toolwire.core.calls import CallTable
from toolwire.core.errors import BackendFault
from toolwire.core.events import CallArgs, CallEnded, CallStarted, Note


def fed(*fragments: Fragment, names=(), cut=None):
    table = CallTable("S", names)
    events = [event for fragment in fragments for event in table.feed(fragment)]
    return events + (table.finish(cut) if cut is not None else [])


def test_fragments_of_one_item_are_one_call():
    events = fed(
        Fragment(item="i", id="c1", name="f", named=True),
        Fragment('{"a"', item="i"),
        Fragment(":1}", item="i"),
        Fragment('{"a":1}', item="i", total=True, ended=True),
    )
    assert events == [CallStarted("c1", "f"), CallArgs("c1", '{"a"'), CallArgs("c1", ":1}"), CallEnded("c1")]


def test_a_total_adds_only_the_missing_end():
    events = fed(
        Fragment(item="i", id="c", name="f", named=True), Fragment("{", item="i"), Fragment("{}", item="i", total=True)
    )
    assert events[1:] == [CallArgs("c", "{"), CallArgs("c", "}")]


def test_a_total_that_contradicts_what_was_sent_ends_the_call_incomplete():
    start = Fragment(item="i", id="c", name="f", named=True)
    for sent, total in (('{"a":1', '{"b":2}'), ('{"a":1}', '{"a":2}')):
        events = fed(start, Fragment(sent, item="i"), Fragment(total, item="i", total=True, ended=True), cut=False)
        assert events[2:] == [Note("arguments_differ", "c"), BROKEN]


def test_a_total_that_means_the_same_contradicts_nothing():
    start = Fragment(item="i", id="c", name="f", named=True)
    events = fed(
        start, Fragment('{"a": [1]}', item="i"), Fragment('{"a":[1]}', item="i", total=True, ended=True), cut=False
    )
    assert events[2:] == [CallEnded("c")]


def test_a_total_that_is_no_json_contradicts_no_whole_arguments():
    start = Fragment(item="i", id="c", name="f", named=True)
    total = Fragment("[object Object]", item="i", total=True, ended=True)
    assert fed(start, Fragment('{"a":1}', item="i"), total)[2:] == [Note("arguments_differ", "c"), CallEnded("c")]


def test_a_total_that_contradicts_a_call_that_has_ended_is_noted_once():
    whole = Fragment('{"a":1}', item="i", id="c", name="f", named=True, total=True, ended=True)
    other = Fragment('{"a":2}', item="i", total=True)
    table = CallTable("S")
    assert [event for each in (whole, other, other) for event in table.feed(each)][2:] == [
        CallEnded("c"),
        Note("arguments_differ", "c"),
    ]
    assert not table.calls[0].is_whole()


BROKEN = CallEnded("c", complete=False, damaged=True)
START = Fragment(item="i", id="c", name="f", named=True)
LOST = None
"""Stands for a frame that was lost."""


def fed_with_gaps(*given: Fragment | None, cut=False, names=()):
    """The events of these fragments, the common ones by the fast path."""
    table = CallTable("S", names)
    events = []
    for fragment in given:
        if fragment is LOST:
            table.record_gap()
            continue
        more = None if fragment.total or fragment.ended else table.extend(fragment.item, fragment.text)
        events += table.feed(fragment) if more is None else [more]
    return events + table.finish(cut)


def test_a_call_with_a_gap_in_it_ends_incomplete_with_what_came_before():
    for ending in ((), (Fragment(item="i", ended=True),), (Fragment(item="i", total=True, ended=True),)):
        events = fed_with_gaps(
            START,
            Fragment('{"path":"/tmp/', item="i"),
            LOST,
            Fragment("bar", item="i"),
            Fragment('"}', item="i"),
            *ending,
        )
        assert events == [
            CallStarted("c", "f"),
            CallArgs("c", '{"path":"/tmp/'),
            Note("arguments_gap", "c"),
            BROKEN,
        ]


def test_a_total_closes_the_gap():
    total = '{"path":"/tmp/foo/bar"}'
    for behind in ((), (Fragment('bar"}', item="i"),)):
        events = fed_with_gaps(
            START,
            Fragment('{"path":"/tmp/', item="i"),
            LOST,
            *behind,
            Fragment(total, item="i", total=True, ended=True),
        )
        assert events[1:] == [CallArgs("c", '{"path":"/tmp/'), CallArgs("c", 'foo/bar"}'), CallEnded("c")]


def test_fragments_go_on_behind_a_gap_that_a_total_has_closed():
    events = fed_with_gaps(
        START, Fragment("{", item="i"), LOST, Fragment('{"a"', item="i", total=True), Fragment(":1}", item="i")
    )
    assert events[1:] == [CallArgs("c", "{"), CallArgs("c", '"a"'), CallArgs("c", ":1}"), CallEnded("c")]


def test_a_total_that_contradicts_what_came_before_the_gap_does_not_close_it():
    events = fed_with_gaps(START, Fragment('{"a":1', item="i"), LOST, Fragment('{"b":2}', item="i", total=True))
    assert events[2:] == [Note("arguments_differ", "c"), BROKEN]


def test_a_call_that_was_whole_before_the_gap_lacks_nothing():
    whole = Fragment('{"a":1}', item="i")
    assert fed_with_gaps(START, whole, LOST)[1:] == [CallArgs("c", '{"a":1}'), CallEnded("c")]
    events = fed_with_gaps(START, whole, LOST, Fragment('{"b":2}', item="i"), LOST)
    assert events[2:] == [Note("arguments_late", "c"), CallEnded("c")]


def test_a_call_that_has_ended_before_the_gap_stays_complete():
    whole = Fragment("no JSON", item="i", id="c", name="f", named=True, total=True, ended=True)
    assert fed_with_gaps(whole, LOST)[-1] == CallEnded("c")


def test_a_call_whose_arguments_were_all_lost_is_not_one_without_arguments():
    assert fed_with_gaps(START, LOST) == [CallStarted("c", "f"), Note("arguments_gap", "c"), BROKEN]


def test_any_gap_damages_a_custom_call():
    start = Fragment(item="i", id="c", name="patch", kind="custom", named=True)
    events = fed_with_gaps(start, Fragment("a", item="i", kind="custom"), LOST, Fragment("b", item="i", kind="custom"))
    assert events[1:] == [CallArgs("c", "a"), Note("arguments_gap", "c"), BROKEN]
    total = Fragment("a-b", item="i", kind="custom", total=True, ended=True)
    assert fed_with_gaps(start, Fragment("a", item="i", kind="custom"), LOST, total)[1:] == [
        CallArgs("c", "a"),
        CallArgs("c", "-b"),
        CallEnded("c"),
    ]


def test_what_waited_for_a_name_is_passed_on_up_to_the_gap():
    late = Fragment('{"b', index=0)
    events = fed_with_gaps(Fragment('{"a":', index=0, id="c"), LOST, late, Fragment(index=0, name="f", named=True))
    assert events == [CallStarted("c", "f"), CallArgs("c", '{"a":'), Note("arguments_gap", "c"), BROKEN]


def test_a_call_that_begins_without_a_name_behind_a_gap_has_lost_its_beginning():
    events = fed_with_gaps(LOST, Fragment('"a":1}', index=0))
    assert events == [
        CallStarted("call_S01", ""),
        Note("arguments_gap", "call_S01"),
        CallEnded("call_S01", complete=False, damaged=True),
    ]


def test_a_call_that_begins_behind_a_gap_is_whole():
    assert fed_with_gaps(LOST, START, Fragment("{}", item="i"))[1:] == [CallArgs("c", "{}"), CallEnded("c")]


def test_the_neighbour_of_a_call_with_a_gap_is_whole():
    other = Fragment('{"b":2}', item="j", id="d", name="g", named=True)
    events = fed_with_gaps(START, Fragment("{", item="i"), LOST, other)
    assert events[2:] == [
        CallStarted("d", "g"),
        CallArgs("d", '{"b":2}'),
        Note("arguments_gap", "c"),
        BROKEN,
        CallEnded("d"),
    ]


def test_a_blank_total_erases_nothing():
    late = Fragment(item="i", id="c", name="f", named=True, total=True, ended=True)
    assert fed(Fragment('{"a":1}', item="i"), late)[1] == CallArgs("c", '{"a":1}')


def test_a_call_waits_for_its_name_and_keeps_what_came_before():
    events = fed(
        Fragment('{"a":1}', item="i", total=True, ended=True), Fragment(item="i", id="c", name="f", named=True)
    )
    assert events == [CallStarted("c", "f"), CallArgs("c", '{"a":1}'), CallEnded("c")]


def test_a_call_that_never_gets_a_name_ends_with_the_turn():
    assert fed(Fragment('{"a":1}', item="i"), cut=False) == [
        CallStarted("call_S01", ""),
        CallArgs("call_S01", '{"a":1}'),
        CallEnded("call_S01"),
    ]


def test_a_call_without_arguments_gets_an_empty_object():
    for text in ("", "  ", "null"):
        events = fed(Fragment(text, item="i", id="c", name="f", named=True, total=True, ended=True))
        assert events == [CallStarted("c", "f"), CallArgs("c", "{}"), CallEnded("c")]


def test_a_call_cut_before_its_arguments_is_incomplete_and_stays_empty():
    assert fed(Fragment(item="i", id="c", name="f", named=True), cut=True) == [
        CallStarted("c", "f"),
        CallEnded("c", complete=False),
    ]


def test_an_open_call_is_complete_at_the_end_only_if_its_json_is():
    start = Fragment(item="i", id="c", name="f", named=True)
    assert fed(start, Fragment('{"a":1}', item="i"), cut=False)[-1] == CallEnded("c", complete=True)
    assert fed(start, Fragment('{"a":', item="i"), cut=False)[-1] == CallEnded("c", complete=False)


def test_a_declared_name_is_announced_at_once_and_a_growing_one_when_arguments_begin():
    assert fed(Fragment(index=0, id="c", name="read"), names=("read",)) == [CallStarted("c", "read")]
    assert fed(Fragment(index=0, id="c", name="read"), names=("read", "read_file")) == []
    assert fed(
        Fragment(index=0, id="c", name="read"), Fragment(index=0, name="_file"), names=("read", "read_file")
    ) == [CallStarted("c", "read_file")]


def test_text_after_the_end_of_a_call_is_noted():
    whole = Fragment("{}", item="i", id="c", name="f", named=True, total=True, ended=True)
    assert fed(whole, Fragment("x", item="i"))[-1] == Note("arguments_late", "c")


NO_NAMES = (
    Fragment('{"a":1}', item="i", total=True, final=True, early=True),
    Fragment('{"b":2}', item="i", total=True, final=True, early=True),
)
NAMES = (
    Fragment(item="i", id="c1", name="f", named=True, total=True, ended=True),
    Fragment(item="i", id="c2", name="g", named=True, total=True, ended=True),
)


def arguments_by_id(events):
    made = {event.id: (event.name, "") for event in events if isinstance(event, CallStarted)}
    for event in events:
        if isinstance(event, CallArgs):
            made[event.id] = (made[event.id][0], made[event.id][1] + event.text)
    return made


@pytest.mark.parametrize(
    "fragments",
    [
        (*NO_NAMES, *NAMES),
        (*NO_NAMES, NO_NAMES[0], *NAMES, *NO_NAMES),
        (*(replace(each, ended=False) for each in NAMES), *NO_NAMES, *NAMES),
        (replace(NAMES[0], ended=False), NO_NAMES[0], replace(NAMES[1], ended=False), NO_NAMES[1], *NAMES),
        (*NO_NAMES, replace(NAMES[1], text='{"b":2}'), replace(NAMES[0], text='{"a":1}')),
        (*(replace(each, name=name) for each, name in zip(NO_NAMES, "fg", strict=True)), *NAMES),
    ],
)
def test_several_totals_under_one_item_are_as_many_calls(fragments):
    events = fed(*fragments, cut=False)
    made = arguments_by_id(events)
    assert sorted(made.values()) == [("f", '{"a":1}'), ("g", '{"b":2}')]
    assert not [event for event in events if isinstance(event, Note)]


def test_a_second_total_for_a_call_that_has_its_name_is_no_second_call():
    start = Fragment(item="i", id="c", name="f", named=True)
    assert fed(start, *NO_NAMES, cut=False)[2:] == [Note("arguments_differ", "c"), BROKEN]


def test_an_id_that_may_be_one_counts_where_there_is_no_other():
    assert fed(Fragment("{}", item="i", fallback="x", name="f", named=True))[0] == CallStarted("x", "f")
    start = Fragment(item="i", id="c", name="f", named=True)
    assert fed(start, Fragment("{}", item="i", fallback="x", name="f", total=True, final=True), cut=False) == [
        CallStarted("c", "f"),
        CallArgs("c", "{}"),
        CallEnded("c"),
    ]


def test_a_custom_call_keeps_its_input_as_it_is():
    events = fed(
        Fragment(item="i", id="c", name="patch", kind="custom", named=True),
        Fragment("  \n", item="i", kind="custom"),
        Fragment("", item="i", kind="custom", ended=True),
    )
    assert events == [CallStarted("c", "patch", "custom"), CallArgs("c", "  \n"), CallEnded("c")]


def test_one_item_key_with_two_ids_is_two_calls():
    events = fed(
        Fragment("{}", item="i", id="a", name="f", named=True, total=True, ended=True),
        Fragment("{}", item="i", id="b", name="g", named=True, total=True, ended=True),
    )
    assert [event.id for event in events if isinstance(event, CallStarted)] == ["a", "b"]


def test_an_item_whose_key_changes_with_every_event_is_found_by_its_place():
    events = fed(
        Fragment(item="x1", id="c", index=0, name="f", named=True),
        Fragment("{}", item="x2", index=0),
        Fragment("{}", item="x3", id="c", index=0, name="f", named=True, total=True, ended=True),
    )
    assert events == [CallStarted("c", "f"), CallArgs("c", "{}"), CallEnded("c")]


def test_calls_that_are_named_only_at_the_end_have_ids_of_their_own():
    events = fed(Fragment("{}", item="a"), Fragment("{}", item="b"), cut=False)
    assert [event.id for event in events if isinstance(event, CallStarted)] == ["call_S01", "call_S02"]


def test_all_arguments_of_a_turn_have_a_limit():
    table = CallTable("S", limit=10)
    table.feed(Fragment('{"a":', item="i", id="c", name="f", named=True))
    with pytest.raises(BackendFault, match="limit of 10"):
        table.feed(Fragment("x" * 20, item="i"))


def test_an_id_that_was_known_before_its_index_is_one_call():
    whole = Fragment("{}", id="c1", index=0, name="f", total=True, named=True, ended=True)
    assert (
        len([event for event in fed(Fragment("{}", id="c1", name="f"), whole) if isinstance(event, CallStarted)]) == 1
    )
