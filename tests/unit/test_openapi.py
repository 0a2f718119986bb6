"""The OpenAPI document: whole, without loose ends, and made from the table alone."""

from __future__ import annotations

import json
import re
from typing import Any

import jsonschema_rs
import pytest

from taskmill.engine import Filter
from taskmill.errors import InvalidInput
from taskmill.server.openapi import document, notes, refusals
from taskmill.server.page import operations, page, type_text
from taskmill.server.rest import ROUTES, STREAMS
from taskmill.server.rest.tasks import TaskBody
from taskmill.server.routes import Described
from taskmill.server.wanted import read_filter, read_query
from taskmill.task import Attempt, State, Task, new_id

EVERY = (*ROUTES, *STREAMS)
DOCUMENT = document(EVERY)
SCHEMAS: dict[str, Any] = DOCUMENT["components"]["schemas"]


def test_nothing_is_named_that_is_not_there_and_nothing_is_there_for_nobody() -> None:
    named = set(re.findall(r'"#/components/schemas/(\w+)"', json.dumps(DOCUMENT)))
    assert named == set(SCHEMAS)


@pytest.mark.parametrize("name", SCHEMAS)
def test_every_schema_is_one(name: str) -> None:
    jsonschema_rs.meta.validate({"$schema": "https://json-schema.org/draft/2020-12/schema", **SCHEMAS[name]})


def test_every_route_is_described_once() -> None:
    described = [(method.upper(), path) for path, methods in DOCUMENT["paths"].items() for method in methods]
    assert sorted(described) == sorted((route.method, route.path) for route in EVERY)
    ids = [found["operationId"] for methods in DOCUMENT["paths"].values() for found in methods.values()]
    assert len(set(ids)) == len(ids) == len(EVERY)


@pytest.mark.parametrize("route", EVERY, ids=lambda route: route.name)
def test_a_route_tells_its_parameters_its_answers_and_its_refusals(route: Described) -> None:
    found = DOCUMENT["paths"][route.path][route.method.lower()]
    in_path = [parameter["name"] for parameter in found["parameters"] if parameter["in"] == "path"]
    assert in_path == re.findall(r"\{(\w+)\}", route.path)
    assert set(found["responses"]) == {str(status) for status in (route.status, *route.also, *refusals(route))}
    assert ("requestBody" in found) == (route.body is not None)
    closed = route.scope is not None or route.any_key
    assert found["security"] == ([{"key": []}] if closed else [])
    assert ("401" in found["responses"]) == closed
    for status, answer in found["responses"].items():
        kinds = list(answer.get("content", {}))
        if int(status) in refusals(route):
            assert kinds == ["application/problem+json"]
        elif int(status) in {101, 204}:
            assert kinds == []
        else:
            assert len(kinds) == 1


@pytest.mark.parametrize("stream", STREAMS, ids=lambda stream: stream.name)
def test_a_stream_takes_the_conditions_that_it_tells_of_and_no_others(stream: Described) -> None:
    good = {"queue": "mail", "type": "mail", "task": new_id(), "event": "task.*", "tenant": "acme"}
    parameters = {each["name"]: each["schema"] for each in DOCUMENT["paths"][stream.path]["get"]["parameters"] if each["in"] == "query"}
    assert parameters.keys() == {*good, "after"}
    for name, value in good.items():
        assert read_query(f"{name}={value}&{name}={value}".encode())[0] == read_filter({name: value})
        assert jsonschema_rs.is_valid(parameters[name], [value])
    for event in parameters["event"]["items"]["enum"]:
        assert read_filter({"event": event}).events
    with pytest.raises(InvalidInput):
        read_query(b"wait=1s")


def test_records_are_described_as_they_are_shown() -> None:
    task = SCHEMAS["Task"]
    assert list(task["properties"]) == [*Task.__struct_fields__, "result_expired"]
    assert set(task["properties"]) - set(task["required"]) == {"payload", "result", "headers"}
    assert task["properties"]["created_at"] == {"type": "string", "format": "date-time"}
    assert {"type": "null"} in task["properties"]["finished_at"]["anyOf"]
    assert task["properties"]["timeout"]["type"] == "string"
    assert task["properties"]["priority"]["enum"] == ["low", "normal", "high", "critical"]
    assert SCHEMAS["Attempts"]["properties"]["attempts"]["items"] == {"$ref": "#/components/schemas/Attempt"}
    attempt = SCHEMAS["Attempt"]
    assert list(attempt["properties"]) == list(Attempt.__struct_fields__)
    assert set(SCHEMAS["Queue"]["properties"]["counts"]["required"]) == set(State)


def test_words_of_the_code_are_words_of_the_document() -> None:
    assert notes(TaskBody)["after"] == "The tasks that it waits for."
    assert SCHEMAS["TaskBody"]["properties"]["after"]["description"] == "The tasks that it waits for."
    assert notes(Filter) == {}


def test_the_page_shows_every_operation_and_nothing_is_left_unescaped() -> None:
    text = page(DOCUMENT)
    for operation in operations(DOCUMENT):
        assert f"</span>{operation.path}</h3>" in text
    assert not re.search(r"<(?!/?(?:a|body|code|h1|h2|h3|head|html|meta|nav|p|section|span|style|table|td|th|title|tr)\b|!doctype)", text)
    assert set(re.findall(r'href="#([\w-]+)"', text)) <= set(re.findall(r'id="([\w-]+)"', text))


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        ({"type": "integer", "minimum": 1, "maximum": 9}, "integer 1 to 9"),
        ({"type": "array", "items": {"$ref": "#/components/schemas/Task"}}, "list of Task"),
        ({"anyOf": [{"type": "string", "format": "date-time"}, {"type": "null"}]}, "time or null"),
        ({"enum": ["a", None]}, "a or null"),
        ({"type": "object", "additionalProperties": {"type": "string"}}, "object of string"),
        ({}, "anything"),
        ({"const": "*"}, "*"),
    ],
)
def test_a_schema_in_a_few_words(schema: dict[str, Any], text: str) -> None:
    assert type_text(schema) == text
