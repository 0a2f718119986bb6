"""Writes into the documents what the code says: the statements in docs/engines/sqlite.md, the table of verbs in docs/ARCHITECTURE.md, the table of metrics in
docs/guides/metrics.md, that of live events in docs/api/events.md, and the whole of docs/reference/cli.md, docs/reference/settings.md and docs/api/rest.md.

`python tools/write_docs.py` after a change of any; a test compares, so a document that lags behind is found.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import click

from taskmill import config
from taskmill.cli.program import program
from taskmill.clock import format_duration
from taskmill.engine import Engine
from taskmill.server.news import TYPES
from taskmill.server.openapi import document
from taskmill.server.page import Operation, fields, operations
from taskmill.server.rest import ROUTES, STREAMS
from taskmill.telemetry import METRICS
from taskmill.verbs import LEFT_OUT, SURFACES, VERBS, Verb

ROOT = Path(__file__).resolve().parent.parent
STATEMENTS = ROOT / "src" / "taskmill" / "engines" / "sqlite"
BLOCK = re.compile(r"^```sql\n-- (\w+)\.sql: (\w+)\n.*?^```$", re.MULTILINE | re.DOTALL)
METRICS_TABLE = re.compile(r"(?<=^\| metric \| kind \| labels \| meaning \|\n\|---\|---\|---\|---\|\n)(?:^\|.*\n)*", re.MULTILINE)
EVENTS_TABLE = re.compile(r"(?<=^\| type \| what it says \| data \|\n\|---\|---\|---\|\n)(?:^\|.*\n)*", re.MULTILINE)
TABLE = re.compile(r"(?<=^\| verb \| guarantee \|\n\|---\|---\|\n)(?:^\|.*\n)*", re.MULTILINE)


def statement(file: str, name: str) -> str:
    """A named statement as its file has it."""
    text = (STATEMENTS / f"{file}.sql").read_text(encoding="utf-8")
    found = re.search(rf"^-- name: {name}\s*\n(.*?)(?=^-- name: |\Z)", text, re.MULTILINE | re.DOTALL)
    if found is None:
        raise LookupError(f"{file}.sql has no statement {name}")
    return found[1].strip()


def with_statements(text: str) -> str:
    return BLOCK.sub(lambda block: f"```sql\n-- {block[1]}.sql: {block[2]}\n{statement(block[1], block[2])}\n```", text)


def with_verbs(text: str) -> str:
    verbs = [(name, inspect.getdoc(verb)) for name, verb in vars(Engine).items() if inspect.isfunction(verb) and not name.startswith("_")]
    return TABLE.sub(lambda _: "".join(f"| `{name}` | {guarantee} |\n" for name, guarantee in verbs), text)


# The verbs


def surfaces_page(_: str = "") -> str:
    head = ["# Verbs and surfaces", "", GENERATED, "", SURFACES_RULES, ""]
    rows = ["| verb | SDK | command line | REST | gRPC | client |", "|---|---|---|---|---|---|"]
    rows += [f"| `{verb.name}` | {' | '.join(_names(verb, surface) for surface in SURFACES)} |" for verb in VERBS]
    return "\n".join([*head, *rows]) + "\n"


SURFACES_RULES = """Every verb of the product, and what each surface calls it. Where a surface leaves one out on purpose, the reason stands there.
`app` is an `App`, `client` a `Client`, `handle` what a submit answers, `.operations` everything that an operator does."""


def _names(verb: Verb, surface: str) -> str:
    names = verb.names(surface)
    prefix = "taskmill " if surface == "cli" else ""
    return "<br>".join(f"`{prefix}{name}`" for name in names) if names else f"*{getattr(verb, surface).removeprefix(LEFT_OUT)}*"


# The command line


def cli_page(_: str = "") -> str:
    top = program()
    context = click.Context(top, info_name="taskmill")
    head = ["# The command line", "", GENERATED, "", CLI_RULES, "", "| command | what it does |", "|---|---|"]
    names = [name for name in top.list_commands(context) if name in top.table]
    head += [f"| [`taskmill {name}`](#taskmill-{name}) | {top.table[name].summary} |" for name in names]
    pages = [line for name in names for line in _command(top.get_command(context, name), context, name, 2)]
    return "\n".join([*head, *pages]).rstrip() + "\n"


GENERATED = "Made from the code by `python tools/write_docs.py`."
CLI_RULES = """Every command that reads takes `--json`: one JSON object on each line, times in RFC 3339. Without it, a terminal gets tables and everything else
gets lines with a tab between their fields. What takes something away asks first, counts with `--dry-run`, and where nobody can be asked wants `--yes`.

Exit codes: 0 done; 1 it failed, or what was waited for did not complete; 2 the command line, a setting or an input is wrong; 130 Ctrl-C. An error is one
line on stderr that says what to do."""


def _command(command: click.Command | None, parent: click.Context, name: str, level: int) -> Iterator[str]:
    """A heading, the help, and for a group everything in it."""
    assert command is not None
    context = click.Context(command, info_name=name, parent=parent)
    yield from ("", f"{'#' * level} {context.command_path}", "", *_paragraphs(command))
    if isinstance(command, click.Group):
        for inner in command.list_commands(context):
            yield from _command(command.get_command(context, inner), context, inner, level + 1)
        return
    yield from ("", "```sh", " ".join([context.command_path, *command.collect_usage_pieces(context)]), "```", "", "| option | meaning |", "|---|---|")
    for parameter in command.get_params(context):
        record = parameter.get_help_record(context)
        if record is not None:
            yield f"| `{_cell(record[0])}` | {_cell(record[1])} |"
    yield from ("", *(_examples(command.epilog or "")))


def _paragraphs(command: click.Command) -> list[str]:
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in (command.help or "").split("\n\n")).splitlines()


def _examples(epilog: str) -> list[str]:
    lines = [line.strip() for line in epilog.splitlines() if line.startswith("  ")]
    return ["```sh", *lines, "```"] if lines else []


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


# The settings


def settings_page(_: str = "") -> str:
    rows = [
        f"| `{name}` | {f'`{_cell(default)}`' if default else ''} | `TASKMILL_{name.upper()}` | {_values(setting)} | {_cell(setting.meaning)} |"
        for name, default, setting in config.reference()
    ]
    head = ["# Settings", "", GENERATED, "", SETTINGS_RULES, "", "| setting | default | variable | values | meaning |", "|---|---|---|---|---|"]
    return "\n".join([*head, *rows]) + "\n"


SETTINGS_RULES = """An argument goes before the environment, that before `taskmill.toml` (the nearest one, from the current folder upward), and
that before the default. `taskmill config show --origin` shows the values in force and where each comes from. A setting that does not exist is refused,
with the nearest name.

Durations are written `"250ms"`, `"90s"`, `"10m"`, `"2h"`, `"1d"`, or as a number of seconds."""


def _values(setting: config.Setting) -> str:
    if setting.kind == "choice":
        return ", ".join(f"`{choice}`" for choice in setting.choices)
    if setting.kind == "duration":
        return f"{format_duration(setting.minimum)} to {format_duration(setting.maximum)}"
    if setting.kind in {"integer", "bytes"}:
        return f"{setting.minimum} to {setting.maximum}" + (" bytes, or `64KiB`, `1MiB`" if setting.kind == "bytes" else "")
    return {"boolean": "`true`, `false`", "url": "a URL", "name": "a name", "secret": "text, never shown"}.get(setting.kind, "text")


# The metrics


def with_metrics(text: str) -> str:
    rows = "".join(
        f"| `{metric.name}` | {metric.kind} | {', '.join(f'`{label}`' for label in metric.labels)} | {_cell(metric.meaning)} |\n" for metric in METRICS
    )
    return METRICS_TABLE.sub(lambda _: rows, text)


def with_events(text: str) -> str:
    rows = "".join(f"| `{type}` | {_cell(one.text)} | {', '.join(f'`{field}`' for field in one.fields)} |\n" for type, one in TYPES.items())
    return EVENTS_TABLE.sub(lambda _: rows, text)


# REST


def rest_page(_: str = "") -> str:
    found = document([*ROUTES, *STREAMS])
    every = list(operations(found))
    head = ["# REST", "", GENERATED, "", REST_RULES, "", "| route | what it does | key |", "|---|---|---|"]
    head += [f"| [`{one.method} {one.path}`](#{_anchor(one)}) | {_cell(one.summary)} | {one.scope} |" for one in every]
    pages = [line for one in every for line in _route(one)]
    schemas = [line for name, schema in found["components"]["schemas"].items() for line in _schema(name, schema)]
    return "\n".join([*head, *pages, "", "## Schemas", *schemas]).rstrip() + "\n"


REST_RULES = """`taskmill api` serves this at port 8080; [the guide](../guides/server.md) shows how. The same is at `/openapi.json` (OpenAPI 3.1) and, for
people, at `/docs`.

A key goes into the header `Authorization: Bearer tm_…`. The column "key" says which scope it needs (`admin` has them all); "whole store" means that a key
with a tenant is refused. Bodies are JSON, sent with `Content-Type: application/json`, up to 1 MiB unless a route takes more, and may be packed with gzip.
Times are RFC 3339; durations are `250ms`, `90s`, `10m`, `2h`, `1d`. Tokens of leases are texts of digits, since a double does not hold all of them.

What is refused is answered as `application/problem+json`: a stable `code`, the `field`, a `hint` that says what to do, and the `request_id` that the log of
the server has too. Of refusals each route lists its statuses: 401 no key or an unknown one, 403 it may not, 404 nothing of that name, 409 not in the state
for it, 410 its record is gone, 412 changed since it was seen, 413, 414 and 431 too large, 415 not JSON, 400 and 422 what was sent cannot be used, 429 a
quota is used up and 503 the store is away (both with `Retry-After`). A method that a path does not have is 405 with `Allow`. Nothing is changed by GET."""


def _anchor(one: Operation) -> str:
    return re.sub(r"[^\w -]", "", f"{one.method} {one.path}".lower()).replace(" ", "-")


def _route(one: Operation) -> Iterator[str]:
    yield from ("", f"## {one.method} {one.path}", "", f"{one.summary}. Key: {one.scope}.")
    if one.parameters:
        yield from ("", "| parameter | in | type | meaning |", "|---|---|---|---|")
        for field in one.parameters:
            yield f"| `{field.name}`{' (required)' if field.required else ''} | {field.place} | {_cell(field.type)} | {_cell(field.description)} |"
    given = [(status, answer) for status, _, answer in one.answers if answer != "Problem"]
    refused = [status for status, _, answer in one.answers if answer == "Problem"]
    body = f"Body: {one.body}. " if one.body else ""
    answers = ", ".join(f"{status} {answer}".strip() for status, answer in given)
    yield from ("", f"{body}Answers: {answers}. Refusals: {', '.join(refused)}.")


def _schema(name: str, schema: dict[str, object]) -> Iterator[str]:
    yield from ("", f"### {name}")
    if schema.get("description"):
        yield from ("", _cell(str(schema["description"])))
    rows = list(fields(schema))
    if rows:
        yield from ("", "| field | type | meaning |", "|---|---|---|")
        for field in rows:
            yield f"| `{field.name}`{' (required)' if field.required else ''} | {_cell(field.type)} | {_cell(field.description)} |"


WRITERS: dict[str, Callable[[str], str]] = {
    "docs/engines/sqlite.md": with_statements,
    "docs/ARCHITECTURE.md": with_verbs,
    "docs/reference/cli.md": cli_page,
    "docs/reference/surfaces.md": surfaces_page,
    "docs/reference/settings.md": settings_page,
    "docs/guides/metrics.md": with_metrics,
    "docs/api/events.md": with_events,
    "docs/api/rest.md": rest_page,
}


def main() -> None:
    for name, write in WRITERS.items():
        page = ROOT / name
        page.parent.mkdir(exist_ok=True)
        page.write_text(write(page.read_text(encoding="utf-8") if page.exists() else ""), encoding="utf-8")


if __name__ == "__main__":
    main()
