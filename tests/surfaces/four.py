"""One request on four surfaces: REST, gRPC, the client and the command line, over one store, each as its own callers write it.

A surface answers the ids that it found, the tally of a change, or the refusal as (code, field), its own word for the field translated back. The command line
shows no codes, so of a refusal there its message and its field are compared.
"""

from __future__ import annotations

import contextlib
import json
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, cast

import grpc

from taskmill import Client
from taskmill.clock import SECOND, instant
from taskmill.errors import InvalidInput, TaskmillError
from taskmill.server.grpc.server import GrpcServer
from taskmill.server.grpc.v1 import taskmill_pb2 as pb
from taskmill.server.grpc.v1 import taskmill_pb2_grpc as stubs
from taskmill.server.grpc.writing import instant_of
from taskmill.server.service import Service
from taskmill.task import State
from tests.surfaces.cli_tools import Cli
from tests.surfaces.grpc.houses import details
from tests.surfaces.serving import Server, serving

__all__ = ["Asked", "Cannot", "Four", "Refused", "four"]


class Cannot(Exception):
    """This surface has no way to write such a request."""


class Refused(NamedTuple):
    """Code, the common word of the field, message."""

    code: str
    field: str
    message: str


class Asked(NamedTuple):
    """A request. `which`: conditions as REST names them; `ids`: tasks by name; `verb`: None for a list."""

    which: Mapping[str, Any] | None = None
    ids: Sequence[str] | None = None
    verb: str | None = None
    confirm: bool = False
    dry_run: bool = False
    limit: int | None = None
    wait: str | None = None


Answer = set[str] | dict[str, Any] | Refused

_GRPC = {
    "filter.states": "state", "filter.types": "type", "filter.queues": "queue", "filter.tenant": "tenant", "filter.tags": "tag",
    "filter.created_from": "since", "filter.created_to": "until", "page_size": "limit", "which": "ids",
}  # fmt: skip
_CLIENT = {"tags": "tag"}
_CLI = {"ID": "ids"}


class Four:
    """All four, over one store."""

    def __init__(self, server: Server, channel: grpc.Channel, cli: Cli, client: Client) -> None:
        self.server = server
        self.cli_tool = cli
        self._tasks: Any = stubs.TasksStub(channel)
        self._client = client

    def ask(self, surface: str, asked: Asked) -> Answer:
        return cast("Answer", getattr(self, surface)(asked))

    # REST

    def rest(self, asked: Asked) -> Answer:
        which = dict(asked.which or {})
        if asked.wait is not None:
            return self._rest("POST", "/api/v1/tasks:wait", {"ids": list(asked.ids or ()), "wait": asked.wait}, lambda data: set(data["ended"]))
        if asked.verb is None:
            query = urllib.parse.urlencode([*which.items(), *([("limit", asked.limit)] if asked.limit is not None else [])], doseq=True)
            return self._rest("GET", f"/api/v1/tasks?{query}", None, lambda data: {task["id"] for task in data["tasks"]})
        body: dict[str, Any] = {"confirm": asked.confirm, "dry_run": asked.dry_run}
        if asked.ids is not None:
            body["ids"] = list(asked.ids)
        if asked.which is not None:
            body["filter"] = which
        return self._rest("POST", f"/api/v1/tasks:{asked.verb}", body, _tally)

    def _rest(self, method: str, path: str, body: object, read: Any) -> Answer:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"{self.server.url}{path}", data, {"Content-Type": "application/json"}, method=method)
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return cast("Answer", read(json.load(answer)))
        except urllib.error.HTTPError as error:
            problem = json.load(error)
            assert error.code == problem["status"]
            return Refused(problem["code"], problem["field"].removeprefix("filter."), problem["title"])

    # gRPC

    def grpc(self, asked: Asked) -> Answer:
        try:
            return self._grpc(asked)
        except grpc.RpcError as error:
            info = details(cast("Any", error))["ErrorInfo"]
            field = info.metadata["field"]
            message = cast("Any", error).details().removeprefix(f"{field}: ").partition(" (")[0]
            return Refused(info.reason, _GRPC.get(field, field), message)

    def _grpc(self, asked: Asked) -> Answer:
        if asked.wait is not None:
            request = pb.WaitRequest(ids=asked.ids or ())
            request.wait.FromMicroseconds(int(float(asked.wait.removesuffix("s")) * SECOND))
            return set(self._tasks.Wait(request, timeout=90).ended)
        if asked.verb is None:
            if asked.limit == 0:
                raise Cannot("0 is the default")
            return {task.id for task in self._tasks.List(pb.ListRequest(filter=_message(asked.which or {}), page_size=asked.limit or 0)).tasks}
        kind = {"cancel": pb.CancelRequest, "requeue": pb.RequeueRequest, "delete": pb.DeleteRequest}[asked.verb]
        if asked.ids is not None and asked.which is not None:
            raise Cannot("which is one of them")
        fields: dict[str, Any] = {"confirm": asked.confirm, "dry_run": asked.dry_run}
        if asked.ids is not None:
            fields["ids"] = pb.Ids(ids=asked.ids)
        if asked.which is not None:
            fields["filter"] = _message(asked.which)
        found = getattr(self._tasks, asked.verb.title())(kind(**fields))
        return {"matched": found.matched, "done": found.done, "refused": dict(found.refused)}

    # Client

    def client(self, asked: Asked) -> Answer:
        try:
            return self._ask_client(asked)
        except TaskmillError as error:
            field = error.field or ""
            return Refused(error.code, _CLIENT.get(field, field), error.message)

    def _ask_client(self, asked: Asked) -> Answer:
        which = dict(asked.which or {})
        if "tag" in which:
            which["tags"] = _pairs(which.pop("tag"))
        if asked.wait is not None or asked.limit is not None:
            raise Cannot("a client waits for any time, and reads all pages")
        if asked.verb is None:
            return {task.id for task in self._client.sync.list(**which)}
        if not which and asked.which is not None:
            which["state"] = ()  # a condition that names nothing
        found = getattr(self._client.sync, asked.verb)(asked.ids, confirm=asked.confirm, dry_run=asked.dry_run, **which)
        return {"matched": found.matched, "done": found.done, "refused": dict(found.refused)}

    # Command line

    def cli(self, asked: Asked) -> Answer:
        options = [
            text for name, values in (asked.which or {}).items() for value in ([values] if isinstance(values, str) else values) for text in (f"--{name}", value)
        ]
        if asked.wait is not None:
            raise Cannot("the command line waits for any time")
        if asked.verb is None:
            said = self.cli_tool("task", "list", "--json", *options, *(["--limit", str(asked.limit)] if asked.limit is not None else []))
        else:
            if asked.which is not None and not asked.which:
                options.append("--all")
            if asked.ids is not None and not asked.ids:
                raise Cannot("no ids is nothing")
            words = [*(["--dry-run"] if asked.dry_run else []), *(["--yes"] if asked.confirm or asked.ids else [])]
            said = self.cli_tool("task", asked.verb, "--json", *(asked.ids or ()), *options, *words)
        if said.code == 2:
            return _refused_line(said.err)
        if asked.verb is None:
            return {cast("str", task["id"]) for task in said.objects}
        [found] = said.objects
        return _tally(found)


def _tally(data: Mapping[str, Any]) -> dict[str, Any]:
    return {"matched": data["matched"], "done": data.get("done", 0), "refused": data.get("refused", {})}


def _refused_line(line: str) -> Refused:
    field, _, message = line.strip().removeprefix("taskmill: ").partition(": ")
    word = field.removeprefix("--")
    return Refused("", _CLI.get(word, word), message.rpartition(" (")[0])


def _pairs(tags: Sequence[str]) -> dict[str, str]:
    pairs = [text.partition("=") for text in tags]
    if not all(equals for _, equals, _ in pairs) or len({name for name, _, _ in pairs}) < len(pairs):
        raise Cannot("a mapping has each name once, with a value")
    return {name: value for name, _, value in pairs}


def _message(which: Mapping[str, Any]) -> pb.Filter:
    message = pb.Filter(types=which.get("type", ()), queues=which.get("queue", ()), tags=_pairs(which.get("tag", ())))
    for word in which.get("state", ()):
        message.states.append(cast("Any", pb.State.Value(f"STATE_{word.upper()}") if word in set(State) else 99))
    if "tenant" in which:
        message.tenant = which["tenant"]
    try:
        for name, field in (("since", message.created_from), ("until", message.created_to)):
            if name in which:
                field.CopyFrom(instant_of(instant(which[name])))
    except InvalidInput:
        raise Cannot("a Timestamp is a time") from None
    return message


@contextlib.contextmanager
def four(folder: Path) -> Iterator[Four]:
    cli = Cli(folder)
    with serving(cli.url, folder) as server:
        made: list[GrpcServer] = []

        async def start(service: Service) -> int:
            made.append(GrpcServer(service.desk, service.crew, service.keys))
            return await made[0].start("127.0.0.1", 0)

        port = server.at_server(start)
        client = Client(server.url)
        try:
            with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
                yield Four(server, channel, cli, client)
        finally:
            client.sync.close()
            server.at_server(lambda _: made[0].stop(0))
