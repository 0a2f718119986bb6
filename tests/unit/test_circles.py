"""Circles of waits: found whole, nothing else, and in steps that grow with tasks and edges."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator

from hypothesis import given
from hypothesis import strategies as st

from taskmill.engines.circles import circles, on_circles

GRAPHS = st.dictionaries(st.integers(0, 8).map(str), st.lists(st.integers(0, 9).map(str), max_size=5), max_size=9)


class Counted(Collection[str]):
    """Targets that count how often they are looked at."""

    def __init__(self, targets: Collection[str], looks: list[int]) -> None:
        self.targets = targets
        self.looks = looks

    def __iter__(self) -> Iterator[str]:
        for target in self.targets:
            self.looks[0] += 1
            yield target

    def __len__(self) -> int:
        return len(self.targets)

    def __contains__(self, target: object) -> bool:
        self.looks[0] += 1
        return target in self.targets


class Name(str):
    """A task whose every comparison and hash is a step."""

    __slots__ = ()
    steps = 0

    def __hash__(self) -> int:
        Name.steps += 1
        return str.__hash__(self)

    def __eq__(self, other: object) -> bool:
        Name.steps += 1
        return str.__eq__(self, other)


def stuck_by_definition(waits: dict[str, list[str]]) -> set[str]:
    """Whoever waits for nothing that can never run is let go, until nobody more can be."""
    left = dict(waits)
    while free := [task for task, targets in left.items() if not set(targets) & left.keys()]:
        for task in free:
            del left[task]
    return set(left)


@given(GRAPHS)
def test_those_who_can_never_run(waits: dict[str, list[str]]) -> None:
    assert circles(waits) == stuck_by_definition(waits)


def test_small_ones() -> None:
    assert circles({}) == set()
    assert circles({"a": ["a"]}) == {"a"}
    assert circles({"a": ["b"], "b": ["a"], "c": [], "d": ["c", "elsewhere"]}) == {"a", "b"}
    assert circles({"a": ["b"], "b": ["b"], "c": ["a"]}) == {"a", "b", "c"}


def steps_of(graph: dict[str, list[str]]) -> int:
    looks = [0]
    named: dict[str, Counted] = {Name(task): Counted([Name(target) for target in targets], looks) for task, targets in graph.items()}
    Name.steps = 0
    circles(named)
    return looks[0] + Name.steps


def chain(tasks: int) -> dict[str, list[str]]:
    return {str(n): [str(n - 1)] if n else [] for n in range(tasks)}


def dense(tasks: int) -> dict[str, list[str]]:
    """Each after the twenty before it: layer by layer it takes as many rounds as there are tasks."""
    return {str(n): [str(m) for m in range(max(0, n - 20), n)] for n in range(tasks)}


def ring(tasks: int) -> dict[str, list[str]]:
    return {str(n): [str((n + 1) % tasks)] for n in range(tasks)}


def star(tasks: int) -> dict[str, list[str]]:
    return {"hub": [str(n) for n in range(tasks)], **{str(n): [] for n in range(tasks)}}


def test_twice_the_input_is_about_twice_the_steps() -> None:
    shapes: list[Callable[[int], dict[str, list[str]]]] = [chain, dense, ring, star]
    for shape in shapes:
        once, twice = steps_of(shape(1_000)), steps_of(shape(2_000))
        assert twice <= 2.2 * once, shape.__name__


def test_those_on_a_circle_without_those_behind_it() -> None:
    waits: dict[str, set[str]] = {"a": {"b"}, "b": {"c"}, "c": {"a"}, "behind": {"a"}, "before": set(), "after": {"before"}}
    assert circles(waits) == {"a", "b", "c", "behind"}
    assert on_circles(waits) == {"a", "b", "c"}
    assert on_circles({"a": {"a"}, "b": {"a"}}) == {"a"}
    assert on_circles({"a": {"elsewhere"}, "b": set()}) == set()
