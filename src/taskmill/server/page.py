"""The OpenAPI document in words: as a page of HTML, and in the pieces that the written reference is made from."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from html import escape
from typing import Any, NamedTuple

__all__ = ["STYLE", "Field", "Operation", "fields", "operations", "page", "type_text"]

Document = Mapping[str, Any]
Schema = Mapping[str, Any]


class Field(NamedTuple):
    """A parameter, or a field of a body or an answer."""

    name: str
    type: str
    required: bool
    description: str
    place: str = "body"


class Operation(NamedTuple):
    """A route, as a reader meets it."""

    tag: str
    method: str
    path: str
    summary: str
    scope: str
    parameters: tuple[Field, ...]
    body: str | None
    answers: tuple[tuple[str, str, str], ...]
    """Status, its phrase, and the name of the schema that comes with it."""


def operations(document: Document) -> Iterator[Operation]:
    """In the order of the table."""
    for path, methods in document["paths"].items():
        for method, found in methods.items():
            body = found.get("requestBody")
            yield Operation(
                found["tags"][0],
                method.upper(),
                path,
                found["summary"],
                _scope(found),
                tuple(_parameter(each) for each in found["parameters"]),
                None if body is None else type_text(body["content"]["application/json"]["schema"]),
                tuple((status, answer["description"], _given(answer)) for status, answer in found["responses"].items()),
            )


def _scope(found: Mapping[str, Any]) -> str:
    if not found["security"]:
        return "anybody"
    if "x-scope" not in found:
        return "any key"
    return f"{found['x-scope']}, whole store" if found["x-whole"] else str(found["x-scope"])


def _parameter(found: Mapping[str, Any]) -> Field:
    schema = found["schema"]
    text = found.get("description") or schema.get("description") or schema.get("items", {}).get("description", "")
    return Field(found["name"], type_text(schema), found["required"], text, found["in"])


def _given(answer: Mapping[str, Any]) -> str:
    content = next(iter(answer.get("content", {}).items()), None)
    if content is None:
        return ""
    kind, holder = content
    return type_text(holder["schema"]) if kind.endswith("json") else str(kind)


def fields(schema: Schema) -> Iterator[Field]:
    """Those of an object."""
    required = set(schema.get("required", ()))
    for name, found in schema.get("properties", {}).items():
        yield Field(name, type_text(found), name in required, found.get("description") or _inner_text(found))


def _inner_text(schema: Schema) -> str:
    return next((str(each["description"]) for each in schema.get("anyOf", ()) if "description" in each), "")


def type_text(schema: Schema) -> str:
    """A schema in a few words."""
    if "$ref" in schema:
        return str(schema["$ref"]).rpartition("/")[2]
    if "anyOf" in schema:
        return " or ".join(dict.fromkeys(type_text(each) for each in schema["anyOf"]))
    if "enum" in schema:
        return " or ".join("null" if value is None else str(value) for value in schema["enum"])
    if "const" in schema:
        return str(schema["const"])
    kind = schema.get("type", "anything")
    if kind == "array":
        parts = schema.get("prefixItems")
        return f"list of {len(parts)} {type_text(parts[0])}" if parts else f"list of {type_text(schema.get('items') or {})}"
    if kind == "object" and schema.get("additionalProperties"):
        return f"object of {type_text(schema['additionalProperties'])}"
    bounds = [str(schema[side]) for side in ("minimum", "maximum") if side in schema]
    words = {"date-time": "time", "uuid": "id"}
    return f"{kind} {' to '.join(bounds)}" if len(bounds) == 2 else words.get(schema.get("format", ""), str(kind))


# The page

STYLE = """
:root{color-scheme:light dark}body{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem}
code,.path{font-family:ui-monospace,monospace}section{border-top:1px solid #8886;margin-top:1.5rem;padding-top:.5rem}
table{border-collapse:collapse;width:100%;font-size:.9rem}td,th{text-align:left;vertical-align:top;padding:.2rem .8rem .2rem 0;border-bottom:1px solid #8883}
.method{font-weight:700;margin-right:.6rem}.scope{opacity:.75;font-size:.9rem}nav a{margin-right:1rem}h3{margin-bottom:.2rem}
"""


def page(document: Document) -> str:
    """Plain HTML without a script; it needs nothing that is not in it."""
    found = list(operations(document))
    tags = dict.fromkeys(operation.tag for operation in found)
    nav = "".join(f'<a href="#{escape(tag)}">{escape(tag)}</a>' for tag in [*tags, "schemas"])
    info = document["info"]
    parts = [
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>{escape(info["title"])}</title>',
        f"<style>{STYLE}</style></head><body><h1>{escape(info['title'])} {escape(info['version'])}</h1><p>{_marked(info['description'])}</p>",
        f'<p><a href="/openapi.json">openapi.json</a></p><nav>{nav}</nav>',
        *(_section(tag, [operation for operation in found if operation.tag == tag]) for tag in tags),
        '<section id="schemas"><h2>schemas</h2>',
        *(_schema(name, schema) for name, schema in document["components"]["schemas"].items()),
        "</section></body></html>",
    ]
    return "".join(parts)


def _section(tag: str, found: list[Operation]) -> str:
    return f'<section id="{escape(tag)}"><h2>{escape(tag)}</h2>{"".join(map(_operation, found))}</section>'


def _operation(operation: Operation) -> str:
    scope = operation.scope if operation.scope in {"anybody", "any key"} else f"scope {operation.scope}"
    body = f"<p>Body: {_named(operation.body)}</p>" if operation.body else ""
    rows = "".join(f"<tr><td>{status}</td><td>{escape(phrase)}</td><td>{_named(given)}</td></tr>" for status, phrase, given in operation.answers)
    return (
        f'<h3 class="path"><span class="method">{operation.method}</span>{escape(operation.path)}</h3><p>{_marked(operation.summary)} '
        f'<span class="scope">({escape(scope)})</span></p>{_table(operation.parameters)}{body}<table><tr><th>status<th>meaning<th>answer</tr>{rows}</table>'
    )


def _table(found: tuple[Field, ...]) -> str:
    if not found:
        return ""
    rows = "".join(
        f"<tr><td>{_field(field)}</td><td>{escape(field.place)}</td><td>{_named(field.type)}</td><td>{_marked(field.description)}</td></tr>" for field in found
    )
    return f"<table><tr><th>name<th>where<th>type<th>meaning</tr>{rows}</table>"


def _schema(name: str, schema: Schema) -> str:
    rows = "".join(f"<tr><td>{_field(field)}</td><td>{_named(field.type)}</td><td>{_marked(field.description)}</td></tr>" for field in fields(schema))
    table = f"<table><tr><th>field<th>type<th>meaning</tr>{rows}</table>" if rows else ""
    return f'<h3 id="schema-{escape(name)}">{escape(name)}</h3><p>{_marked(schema.get("description", ""))}</p>{table}'


def _field(field: Field) -> str:
    return f"<code>{escape(field.name)}</code>{' *' if field.required else ''}"


def _named(text: str) -> str:
    """A name of a schema leads to it."""
    return " ".join(f'<a href="#schema-{escape(word)}">{escape(word)}</a>' if word[:1].isupper() else escape(word) for word in text.split(" "))


def _marked(text: str) -> str:
    pieces = escape(text).split("`")
    return "".join(f"<code>{piece}</code>" if place % 2 else piece for place, piece in enumerate(pieces))
