"""The support desk, with a scripted model and the real MCP server."""

import asyncio

import pytest
from support_desk import Ticket, desk

from toolwire.agent import OutputInvalid, RunResult
from toolwire.testing import Calls, ScriptedModel, Turn

DONE = Calls("final_result", order="A17", topic="refund", reply="Your 32 euros are on their way.")


def handled(*turns: Turn) -> tuple[RunResult[Ticket], ScriptedModel]:
    """What the desk makes of a message, when the model does this."""
    model = ScriptedModel(*turns)
    with desk.override(model=model):
        return desk.run_sync("My order A17 arrived broken. I want my money back."), model


def test_a_small_refund_is_paid_and_filed() -> None:
    look, refund = Calls("orders__find_order", number="A17"), Calls("orders__refund", number="A17", euros=32)
    result, model = handled(look, refund, DONE)
    assert result.output == Ticket("A17", "refund", "Your 32 euros are on their way.")
    assert '"item":"teapot"' in result.calls[0].result.replace(" ", "").replace("\n", "")
    assert not result.calls[1].failed
    assert {"orders__find_order", "orders__refund", "final_result"} == set(model.requests[0].tools)
    assert "support desk" in model.requests[0].instructions


def test_a_large_refund_needs_a_person() -> None:
    filed = Calls("final_result", order="B42", topic="refund", reply="A colleague will write.", needs_person=True)
    result, _ = handled(Calls("orders__refund", number="B42", euros=890), filed)
    assert result.output.needs_person
    assert result.calls[0].failed
    assert "need a person" in result.calls[0].result


def test_an_order_that_is_not_there_is_no_crash() -> None:
    result, model = handled(Calls("orders__find_order", number="Z99"), DONE)
    assert "no order Z99" in model.requests[1].results[0]
    assert result.output.topic == "refund"


def test_a_ticket_has_one_of_three_topics() -> None:
    wrong = Calls("final_result", order="A17", topic="rant", reply="…")
    result, _ = handled(wrong, DONE)
    assert result.output.topic == "refund"
    with pytest.raises(OutputInvalid, match="rant"):
        handled(*[wrong] * 4)


def test_two_customers_at_once_share_the_server() -> None:
    async def both() -> list[str]:
        model = ScriptedModel(
            otherwise=lambda asked: DONE if asked.results else Calls("orders__find_order", number=asked.prompt)
        )
        async with desk.clone(model=model) as busy:
            results = await asyncio.gather(busy.run("A17"), busy.run("B42"))
        return [each.calls[0].arguments for each in results]

    assert asyncio.run(both()) == ['{"number":"A17"}', '{"number":"B42"}']
