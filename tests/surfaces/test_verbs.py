"""The table of verbs is what the surfaces have: every name in it exists, and nothing that a surface has is missing from it."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

import click
import pytest

from taskmill import App, Client
from taskmill.cli.program import program
from taskmill.client.operations import RemoteOperations
from taskmill.handle import Handle
from taskmill.operations import Operations
from taskmill.server.grpc.v1 import taskmill_pb2 as pb
from taskmill.server.rest import ROUTES, STREAMS
from taskmill.verbs import LEFT_OUT, PROTOCOL, SURFACES, VERBS, Verb

KINDS: dict[str, type] = {
    "app": App, "handle": Handle, "client": Client, "app.operations": Operations, "client.operations": RemoteOperations,
}  # fmt: skip
PROGRAMS = frozenset(
    {"api", "bench", "config show", "db plan", "db sql", "db upgrade", "db verify", "dev", "init", "kit worker", "scheduler", "up", "version", "worker"}
)
"""Commands that run something or look after a store's schema: no verbs of callers."""
DOORS = frozenset({"healthz", "livez", "readyz", "startupz", "metrics", "openapi", "docs"})
"""Routes for orchestrators and readers."""
OF_CLIENTS = frozenset({"close", "offer", "offer_many"})
"""Of the client's own way to the server."""


def verbs_of(kind: type) -> set[str]:
    found = {name for name, _ in inspect.getmembers(kind, lambda each: inspect.iscoroutinefunction(each) or inspect.isasyncgenfunction(each))}
    return {name for name in found | ({"stream"} & set(dir(kind))) if not name.startswith("_")}


def commands(command: click.Command, path: tuple[str, ...] = ()) -> Iterator[str]:
    context = click.Context(command)
    if not isinstance(command, click.Group):
        yield " ".join(path)
        return
    for name in command.list_commands(context):
        inner = command.get_command(context, name)
        assert inner is not None
        yield from commands(inner, (*path, name))


def named(surface: str) -> set[str]:
    return {name for verb in VERBS for name in verb.names(surface)}


@pytest.mark.parametrize("verb", VERBS, ids=lambda verb: verb.name)
def test_a_verb_is_on_every_surface_or_the_table_says_why_not(verb: Verb) -> None:
    for surface in SURFACES:
        text = getattr(verb, surface)
        assert text
        assert verb.names(surface) or len(text.removeprefix(LEFT_OUT).split()) >= 4, f"{verb.name} is left out of {surface} without a reason"


@pytest.mark.parametrize("surface", ["sdk", "client"])
def test_methods_exist(surface: str) -> None:
    for name in named(surface):
        kind, _, method = name.rpartition(".")
        assert callable(getattr(KINDS[kind], method)), name


def test_every_operation_is_a_verb() -> None:
    assert [verb.name for verb in VERBS if not hasattr(Operations, verb.name)] == ["list_keys", "create_key", "revoke_key", "me"]
    assert {verb.name for verb in VERBS if f"app.operations.{verb.name}" in verb.names("sdk")} == verbs_of(Operations)


def test_the_client_has_no_verb_beside_the_table() -> None:
    assert {f"client.operations.{name}" for name in verbs_of(RemoteOperations) - OF_CLIENTS} == {
        name for name in named("client") if name.startswith("client.operations.")
    }


def test_every_command_is_a_verb_or_runs_something() -> None:
    assert set(commands(program())) == named("cli") | PROGRAMS


def test_every_route_is_a_verb_or_a_door() -> None:
    routes: set[str] = set()
    for route in (*ROUTES, *STREAMS):
        if route.name not in DOORS and not route.path.startswith(PROTOCOL):
            routes.add(f"{route.method} {route.path}")
    assert routes == named("rest")


def test_every_rpc_is_a_verb() -> None:
    services: Any = pb.DESCRIPTOR.services_by_name
    rpcs = {f"{service.name}.{method.name}" for service in services.values() for method in service.methods}
    assert {name for name in rpcs if not name.startswith(PROTOCOL)} == named("grpc")
