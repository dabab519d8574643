"""update_plan: the model writes down the steps of its work. Codex has this tool, and its models expect it.

Nothing else happens: the plan is in the conversation, where the model finds it again, and the user sees how many of the
steps are done.
"""

from typing import Literal

import msgspec

from toolwire.turns.tools.call import ToolError
from toolwire.turns.tools.registry import tool

MAX_STEPS = 100


class PlanStep(msgspec.Struct, frozen=True):
    """A step of a plan."""

    step: str
    status: Literal["pending", "in_progress", "completed"]


def count_done(plan: list[PlanStep]) -> str:
    """How many steps are done, and the one that is in progress."""
    done = sum(each.status == "completed" for each in plan)
    current = next((f": {each.step}" for each in plan if each.status == "in_progress"), "")
    return f"{done} of {len(plan)} done{current}"


@tool(name="update_plan", parallel=True)
async def update_plan(plan: list[PlanStep], explanation: str = "") -> str:
    """Updates the task plan.

    Provide an optional explanation and a list of plan items, each with a step and status.
    At most one step can be in_progress at a time.

    Args:
        plan: The list of steps.
        explanation: Why the plan has changed.
    """
    if len(plan) > MAX_STEPS:
        raise ToolError(f"the plan has {len(plan)} steps; at most {MAX_STEPS} are allowed")
    if sum(each.status == "in_progress" for each in plan) > 1:
        raise ToolError("at most one step can be in_progress at a time")
    return f"Plan updated ({count_done(plan)})"
