"""The OpenAPI document, made from the table of routes: what each asks for, what it answers, and every way in which it refuses."""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from http import HTTPStatus
from itertools import pairwise
from typing import Any

import msgspec

from taskmill.server.answers import STRUCTS, TEXTS, Schema, answers
from taskmill.server.problem import Problem
from taskmill.server.routes import Described
from taskmill.server.shapes import Id, Key, Name
from taskmill.version import __version__

__all__ = ["document", "refusals"]

TEMPLATE = "#/components/schemas/{name}"
_PARAMETER = re.compile(r"\{(\w+)\}")
_ABOUT = """Times are RFC 3339 and durations as people write them: `250ms`, `90s`, `10m`, `2h`, `1d`; tokens of leases are texts of digits.
Whatever is refused is answered as `application/problem+json` with a stable `code`, the `field` and a `hint` that says what to do."""
_HEADERS: dict[str, Schema] = {
    "Idempotency-Key": {"schema": {"type": "string", "minLength": 1, "maxLength": 256}, "description": "One task per key; the same as `idempotency_key`."},
    "If-Match": {"schema": {"type": "string"}, "description": "The ETag seen; refused with 412 when it is another by now."},
    "Last-Event-ID": {"schema": {"type": "string"}, "description": "The id of the last event that was heard, as browsers give it; it goes before `after`."},
    "If-None-Match": {"schema": {"type": "string", "pattern": r"^\*$", "examples": ["*"]}, "description": "It must be new; 412 when there is one."},
}
_OF_PATHS: dict[tuple[str, str], Any] = {("tasks", "id"): Id, ("keys", "id"): Key, ("workers", "id"): Key}
"""What a name in a path stands for; a name of ours where nothing is said."""


def document(routes: Sequence[Described]) -> dict[str, Any]:
    """The whole of it; the same table gives the same document."""
    schema_of, components = _schemas(routes)
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route, schema_of)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Taskmill", "version": __version__, "description": " ".join(_ABOUT.split())},
        "servers": [{"url": "/"}],
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer", "description": "`taskmill key create` makes one."}},
        },
    }


# Schemas


class _SchemaOf:
    """The schema of a type; those of structures are named and stand among the components."""

    def __init__(self, kinds: Iterable[Any]) -> None:
        self._kinds = {kind: None for kind in kinds if isinstance(kind, type) and issubclass(kind, msgspec.Struct)}
        _, found = msgspec.json.schema_components(list(self._kinds), ref_template=TEMPLATE)
        self.components: dict[str, Any] = dict(found)
        for kind in self._kinds:
            _explain(kind, self.components[kind.__name__])

    def __call__(self, kind: Any) -> Schema:
        [schema], components = msgspec.json.schema_components([kind], ref_template=TEMPLATE)
        for name, found in components.items():
            self.components.setdefault(name, found)
        return schema


def _schemas(routes: Sequence[Described]) -> tuple[_SchemaOf, dict[str, Any]]:
    bodies = [kind for route in routes for kind in (route.body, *route.parts) if kind is not None]
    given = [route.gives for route in routes if isinstance(route.gives, type)]
    schema_of = _SchemaOf([*bodies, *given, *STRUCTS, Problem, *_inner(bodies)])
    named = answers(schema_of)
    return schema_of, dict(sorted({**schema_of.components, **named}.items()))


def _inner(bodies: Iterable[type]) -> Iterator[type]:
    """Structures that stand in others: they are among the components anyway, and have words of their own."""
    for body in bodies:
        for field in msgspec.structs.fields(body):
            for kind in (field.type, *getattr(field.type, "__args__", ())):
                if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
                    yield kind


def _explain(kind: type, schema: Schema) -> None:
    """The words that stand under a field in the code stand beside it in the document."""
    for name, text in notes(kind).items():
        if name in schema.get("properties", {}):
            schema["properties"][name].setdefault("description", text)


@cache
def notes(kind: type) -> dict[str, str]:
    """By field, what its class says of it; nothing where the source is not at hand."""
    found: dict[str, str] = {}
    for base in reversed(kind.__mro__):
        try:
            [tree] = ast.parse(textwrap.dedent(inspect.getsource(base))).body
        except (OSError, TypeError, ValueError, SyntaxError):
            continue
        body = getattr(tree, "body", [])
        for field, note in pairwise(body):
            match field, note:
                case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                    found[name] = " ".join(text.split())
    return found


# Operations


def _operation(route: Described, schema_of: _SchemaOf) -> dict[str, Any]:
    found: dict[str, Any] = {"operationId": route.name, "summary": route.summary, "tags": [_tag(route)], "parameters": list(_parameters(route, schema_of))}
    if route.body is not None:
        required = any(field.required for field in msgspec.structs.fields(route.body))
        found["requestBody"] = {"required": required, "content": {"application/json": {"schema": schema_of(route.body)}}}
    found["responses"] = {str(status): _response(status, _content(route, schema_of)) for status in (route.status, *route.also)}
    found["responses"] |= {str(status): _response(status, _PROBLEM) for status in refusals(route)}
    found["security"] = [] if route.scope is None and not route.any_key else [{"key": []}]
    if route.scope is not None:
        found["x-scope"], found["x-whole"] = route.scope.value, route.whole
    return found


def _tag(route: Described) -> str:
    return re.split(r"[/:]", route.path.removeprefix("/api/v1/"))[0] if route.path.startswith("/api/v1/") else "server"


def _parameters(route: Described, schema_of: _SchemaOf) -> Iterator[dict[str, Any]]:
    for name in _PARAMETER.findall(route.path):
        yield {"name": name, "in": "path", "required": True, "schema": schema_of(_OF_PATHS.get((_tag(route), name), Name))}
    said = notes(route.query)
    for field in msgspec.structs.fields(route.query):
        found = {"name": field.encode_name, "in": "query", "required": field.required, "schema": _without_null(schema_of(field.type))}
        yield {**found, "description": said[field.name]} if field.name in said else found
    for name in route.headers:
        yield {"name": name, "in": "header", "required": False, **_HEADERS[name]}


def _without_null(schema: Schema) -> Schema:
    """A parameter is there or it is not."""
    rest = [each for each in schema.get("anyOf", ()) if each != {"type": "null"}]
    return rest[0] if len(rest) == 1 else {**schema, "anyOf": rest} if rest else schema


def _content(route: Described, schema_of: _SchemaOf) -> dict[str, Any]:
    if route.gives is None:
        return {}
    if isinstance(route.gives, str) and route.gives in TEXTS:
        return {TEXTS[route.gives]: {"schema": {"type": "string"}}}
    return {"application/json": {"schema": {"$ref": TEMPLATE.format(name=route.gives)} if isinstance(route.gives, str) else schema_of(route.gives)}}


_PROBLEM = {"application/problem+json": {"schema": {"$ref": TEMPLATE.format(name="Problem")}}}
_RESPONSE_HEADERS: dict[int, dict[str, str]] = {
    401: {"WWW-Authenticate": "How to say who you are."},
    429: {"Retry-After": "Seconds after which it may be tried again."},
    503: {"Retry-After": "Seconds after which it may be tried again."},
}


def _response(status: int, content: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {"description": HTTPStatus(status).phrase}
    if content:
        found["content"] = content
    if status in _RESPONSE_HEADERS and content is _PROBLEM:
        found["headers"] = {name: {"description": text, "schema": {"type": "string"}} for name, text in _RESPONSE_HEADERS[status].items()}
    return found


def refusals(route: Described) -> list[int]:
    """Every status of a refusal: those of its own, those of a body, those of the door."""
    found = {414, 422, 431, *route.refuses}
    if "{" in route.path:
        found.add(404)
    if route.body is not None:
        found |= {400, 413, 415}
    if route.scope is not None or route.any_key:
        found |= {401, 403, 429, 503}
    return sorted(found - {route.status, *route.also})
