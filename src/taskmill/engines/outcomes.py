"""What no store may be asked about the end of an attempt, whichever the engine."""

from __future__ import annotations

from collections.abc import Sequence

from taskmill.engine import Ending, Outcome
from taskmill.errors import InvalidInput

__all__ = ["check_outcomes"]


def check_outcomes(outcomes: Sequence[Outcome]) -> None:
    """Refuse durations below zero and a wait for nothing."""
    for outcome in [outcome for outcome in outcomes if outcome.ending is not Ending.COMPLETED]:
        if outcome.after < 0:
            raise InvalidInput(f"{outcome.after} is negative", field="after", hint="a duration in microseconds")
        if outcome.ending is Ending.WAITING and not (outcome.tasks or outcome.then or outcome.signals or outcome.deadline is not None):
            raise InvalidInput("a wait for nothing would never end", field="signals", hint="name tasks, signals or a deadline")
