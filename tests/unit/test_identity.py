"""Which call a fragment belongs to. What real servers do is in tests/museum; this is the table's own behaviour."""

import pytest

from toolwire.core.errors import BackendFault
from toolwire.core.events import CallArgs, CallEnded, CallStarted, Note
from toolwire.core.identity import CallTable, Fragment


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


def test_a_total_that_contradicts_what_was_sent_is_noted_and_ignored():
    start = Fragment(item="i", id="c", name="f", named=True)
    assert fed(start, Fragment("{1", item="i"), Fragment("{2", item="i", total=True))[-1] == Note(
        "arguments_differ", "c"
    )


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
