"""One vocabulary: every state has its event, and what has ended is told by the three that end."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from taskmill.events import ENDED, Event, Kind, of_state
from taskmill.task import TERMINAL, State


def test_every_state_has_an_event_of_its_own() -> None:
    assert len({of_state(state) for state in State}) == len(State)


def test_a_task_that_ended_is_told_by_the_kinds_that_end() -> None:
    assert {of_state(state) for state in TERMINAL} == ENDED
    assert all(of_state(state) not in ENDED for state in set(State) - TERMINAL)


@pytest.mark.parametrize("state", sorted(TERMINAL))
def test_an_end_has_its_states_name(state: State) -> None:
    assert of_state(state).value == f"task.{state.value}"


def test_every_kind_says_what_it_is_about() -> None:
    assert {kind.value.partition(".")[0] for kind in Kind} == {"task", "worker", "schedule", "leader", "setting", "resync"}


@given(
    st.sampled_from(Kind),
    st.text(max_size=40),
    st.integers(0, 2**53),
    st.dictionaries(st.text(max_size=5), st.none() | st.text(max_size=5) | st.integers(-9, 9)),
)
def test_an_event_goes_through_json(kind: Kind, subject: str, version: int, data: dict[str, str | int | float | None]) -> None:
    event = Event(kind=kind, subject=subject, version=version, at=version, data=data)
    assert msgspec.json.decode(msgspec.json.encode(event), type=Event) == event


def test_an_event_does_not_change() -> None:
    event: Any = Event(kind=Kind.READY, subject="x")
    with pytest.raises(AttributeError):
        event.version = 2
    with pytest.raises(TypeError):
        event.data["x"] = 1
