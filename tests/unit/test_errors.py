"""Every error has its code, its place in HTTP and gRPC, and survives the way between processes."""

from __future__ import annotations

import pickle
from collections.abc import Iterator

import pytest

from taskmill import errors
from taskmill.errors import InvalidInput, InvalidPayload, StaleLease, TaskmillError

GRPC_STATUS = {
    "ABORTED", "DEADLINE_EXCEEDED", "FAILED_PRECONDITION", "INTERNAL", "INVALID_ARGUMENT", "NOT_FOUND", "PERMISSION_DENIED", "RESOURCE_EXHAUSTED",
    "UNAUTHENTICATED", "UNAVAILABLE",
}  # fmt: skip


def _tree(kind: type[TaskmillError]) -> Iterator[type[TaskmillError]]:
    yield kind
    for child in kind.__subclasses__():
        if child.__module__ == errors.__name__:
            yield from _tree(child)


KINDS = list(_tree(TaskmillError))


def test_all_errors_are_public() -> None:
    assert {kind.__name__ for kind in KINDS} == set(errors.__all__) - {"nearest"}


def test_codes_are_not_shared() -> None:
    codes = [kind.code for kind in KINDS]
    assert len(set(codes)) == len(codes)


@pytest.mark.parametrize("kind", KINDS)
def test_each_error_is_in_the_drawing(kind: type[TaskmillError]) -> None:
    line = next(line for line in (errors.__doc__ or "").splitlines() if kind.__name__ in line.split())
    assert kind is TaskmillError or str(kind.status) in line


@pytest.mark.parametrize("kind", KINDS)
def test_each_error_maps_to_http_and_grpc(kind: type[TaskmillError]) -> None:
    assert 400 <= kind.status < 600
    assert kind.grpc in GRPC_STATUS


@pytest.mark.parametrize("kind", KINDS)
def test_each_error_is_the_same_after_pickling(kind: type[TaskmillError]) -> None:
    before = kind("it broke", code="special", field="queue", hint="mend it")
    after = pickle.loads(pickle.dumps(before))
    assert type(after) is kind
    assert (after.message, after.code, after.field, after.hint) == ("it broke", "special", "queue", "mend it")


def test_the_text_names_the_field_and_the_hint() -> None:
    assert str(InvalidInput("is empty", field="queue", hint="name one")) == "queue: is empty (name one)"
    assert str(InvalidInput("is empty", field="queue")) == "queue: is empty"
    assert str(InvalidInput("is empty", hint="name one")) == "is empty (name one)"
    assert str(InvalidInput("is empty")) == "is empty"


def test_the_code_is_the_kind_s_own_unless_given() -> None:
    assert StaleLease("late").code == "stale_lease"
    assert InvalidPayload("deep", code="too_deep").code == "too_deep"
    assert InvalidPayload.code == "invalid_payload"
