"""Queue settings, seals, requeues by version and reserved tasks over HTTP; and the document that programs are generated from."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from taskmill.engine import Ending
from taskmill.server.openapi import document
from taskmill.server.rest import ROUTES, STREAMS
from taskmill.task import NewTask, new_id
from tests.surfaces.api import Api

TASKS = "/api/v1/tasks"
SETTINGS = "/api/v1/queues/mail/settings"


# Queue settings


async def test_queue_settings_are_put_as_they_were_seen(api: Api) -> None:
    body = {"weights": {"acme": 3}, "priorities": [1, 2, 4, 8], "fair": "tenant"}
    made = await api("PUT", SETTINGS, body, headers={"If-None-Match": "*"})
    assert (made.status, made.headers["etag"], made.data["version"]) == (200, '"o1"', 1)
    assert made.data["settings"] == {"weights": {"acme": 3}, "priorities": [1, 2, 4, 8], "fair": "tenant"}
    assert (await api.refused(412, "PUT", SETTINGS, body, headers={"If-None-Match": "*"})).code == "precondition_failed"
    changed = await api("PUT", SETTINGS, {"weights": {"acme": 4}}, headers={"If-Match": '"o1"'})
    assert (changed.status, changed.data["settings"]) == (200, {"weights": {"acme": 4}})
    assert (await api("GET", "/api/v1/queues/mail")).headers["etag"] == '"o2"'
    await api.refused(412, "DELETE", SETTINGS, headers={"If-Match": '"o1"'})
    assert (await api("DELETE", SETTINGS, headers={"If-Match": '"o2"'})).status == 204
    assert (await api.refused(404, "GET", "/api/v1/queues/mail")).code == "unknown_queue"


@pytest.mark.parametrize(
    ("body", "field"),
    [({"weights": {"a": 0}}, "weights.a"), ({"priorities": [1, 2]}, "priorities"), ({"fair": "x" * 129}, "fair"), ({"turns": 1}, "turns")],
)
async def test_queue_settings_that_cannot_be(api: Api, body: dict[str, Any], field: str) -> None:
    assert (await api.refused(422, "PUT", SETTINGS, body)).data["field"] == field


async def test_tasks_of_a_queue_take_turns_as_it_says(api: Api) -> None:
    await api.ok("PUT", SETTINGS, {"fair": "tenant"})
    await api.join("w", "note", queue="mail")
    many = await api.submit(*["note"] * 20, queue="mail", tenant="acme")
    [one] = await api.submit("note", queue="mail", tenant="beta")
    assert [(await api.ok("GET", f"{TASKS}/{id}"))["fair_key"] for id in (many[0], one)] == ["acme", "beta"]


# Seals


async def test_a_seal_over_http(api: Api) -> None:
    parent = (await api.ok("POST", TASKS, {"type": "sum", "queue": "q", "payload": None, "sealed": True}))["id"]
    for body in ({"parent": parent}, {"parent": {"task": parent, "on_failure": "ignore"}}):
        await api.ok("POST", TASKS, {"type": "part", "queue": "q", "payload": None, **body})
    found = await api.ok("GET", f"{TASKS}/{parent}")
    assert (found["sealed"], found["open_edges"], found["state"]) == (True, 2, "waiting")
    assert [edge["on_failure"] for edge in (await api.ok("GET", f"{TASKS}/{parent}/edges"))["edges"]] == ["cancel", "ignore"]
    assert await api.ok("POST", f"{TASKS}/{parent}:unseal", {}) == {"id": parent, "sealed": False}
    late = await api.refused(409, "POST", TASKS, {"type": "part", "queue": "q", "payload": None, "parent": parent})
    assert (late.code, late.data["field"]) == ("no_seal", "parent")
    await api.refused(404, "POST", f"{TASKS}/{new_id()}:unseal", {})


async def test_the_hint_at_too_many_edges_names_what_there_is(api: Api) -> None:
    said = await api.refused(422, "POST", TASKS, {"type": "sum", "queue": "q", "payload": None, "after": [new_id() for _ in range(10_001)]})
    fields = set(document(ROUTES)["components"]["schemas"]["TaskBody"]["properties"])
    for word in ("sealed", "parent"):
        assert word in said.data["hint"]
        assert word in fields
    assert "unseal" in said.data["hint"]
    assert any(route.path.endswith(":unseal") for route in ROUTES)


# Requeues


async def test_a_repeated_requeue_runs_nothing_twice(api: Api) -> None:
    """The answer of the first got lost, the task ran to its end, and the same request comes again."""
    [id] = await api.submit("charge")
    await api.end(Ending.DEAD, "charge")
    for path, body in ((f"{TASKS}/{id}:requeue", {}), (f"{TASKS}:requeue", {"ids": [id]})):
        await api.ok("POST", path, body)
        await api.end(Ending.COMPLETED, "charge")
        again = await api("POST", path, body)
        assert again.code == "version_required" if again.status == 409 else again.data["refused"] == {"version_required": 1}
        found = await api.ok("GET", f"{TASKS}/{id}")
        assert found["state"] == "completed"
        assert (await api.ok("POST", f"{TASKS}/{id}:requeue", {"version": found["version"]}))["state"] == "pending"
        await api.end(Ending.DEAD, "charge")


# Reserved


async def test_a_reserved_task(api: Api) -> None:
    new = NewTask(type="note", queue="q")
    await api.engine.submit([new], reserved=True)
    said = await api.refused(409, "GET", f"{TASKS}/{new.id}")
    assert said.code == "reserved"
    assert "ask again" in said.data["hint"]
    assert (await api.refused(409, "GET", f"{TASKS}/{new.id}?wait=10ms")).code == "reserved"
    assert (await api.ok("POST", f"{TASKS}:wait", {"ids": [new.id], "wait": "10ms"})) == {"ended": {}, "unknown": []}
    key = await api.key("read", tenant="acme")
    admin = await api.key("admin")
    assert (await api.refused(404, "GET", f"{TASKS}/{new.id}", key=key)).code == "not_found"
    changed = await api.ok("POST", f"{TASKS}/{new.id}:cancel", {}, key=admin)
    assert (changed["state"], changed["requested"]) == ("cancelled", False)


# The document


def schemas(value: Any, path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Every schema of the document, wherever it stands."""
    if isinstance(value, dict):
        if {"const", "enum", "type", "items", "properties"} & value.keys() and not path.endswith("/properties"):
            yield path, value
        for name, inner in value.items():
            yield from schemas(inner, f"{path}/{name}")
    elif isinstance(value, list):
        for number, inner in enumerate(value):
            yield from schemas(inner, f"{path}/{number}")


DOCUMENT = document((*ROUTES, *STREAMS))


def test_no_schema_is_a_constant() -> None:
    """openapi-python-client leaves out an operation with one in a header, whatever its type."""
    assert [path for path, schema in schemas(DOCUMENT) if "const" in schema] == []
    for operations in DOCUMENT["paths"].values():
        for operation in operations.values():
            assert all("type" in each["schema"] or "anyOf" in each["schema"] for each in operation["parameters"]), operation["operationId"]


def test_a_list_has_one_kind_of_items() -> None:
    """Generators of clients refuse the whole document for a list whose items are told one by one."""
    for path, schema in schemas(DOCUMENT):
        assert isinstance(schema.get("items", {}), dict), path
        assert "prefixItems" not in schema, path


def test_every_list_in_an_answer_says_of_what() -> None:
    """A list of objects without a name is nothing that a reader or a generator can use."""
    answers = {name: schema for name, schema in DOCUMENT["components"]["schemas"].items() if not name.endswith("Body")}
    for name, schema in answers.items():
        for path, found in schemas(schema, name):
            items = found.get("items")
            assert not (isinstance(items, dict) and items.get("type") == "object" and "title" not in items), f"{path} is a list of objects without a name"


def test_every_reference_leads_somewhere() -> None:
    known = set(DOCUMENT["components"]["schemas"])

    def references(value: Any) -> Iterator[str]:
        if isinstance(value, dict):
            yield from (value["$ref"],) if isinstance(value.get("$ref"), str) else ()
            for inner in value.values():
                yield from references(inner)
        elif isinstance(value, list):
            for inner in value:
                yield from references(inner)

    assert {reference.rpartition("/")[2] for reference in references(DOCUMENT)} <= known
