"""`taskmill limit`, `leader`, `queue set`, `task signal` and `task edges`: what people set and look at."""

from __future__ import annotations

import json

import msgspec
import pytest

from taskmill.engine import Claimed, Ending, Engine, Joining, Outcome, Room
from taskmill.engines.settings import QueueSettings
from taskmill.task import Edge, NewTask, State, TypeSettings, new_id
from tests.surfaces.cli_tools import Cli

# Limits


def test_a_limit_is_put_listed_and_dropped(cli: Cli) -> None:
    assert cli.ok("limit", "put", "gateway", "--rate", "10/5s", "--cap", "3").out == "gateway allows 10 in 5s and 3 at once\n"
    assert cli.ok("limit", "put", "per-user", "--cap", "1").out == "per-user allows 1 at once\n"
    assert cli.ok("limit", "list").lines == ["gateway\t10 in 5s\t3 at once\tput by hand", "per-user\t\t1 at once\tput by hand"]
    first, _ = cli.ok("limit", "list", "--json").objects
    assert first["name"] == "gateway"
    assert first["limit"] == {"rate": 10, "window": "5s", "cap": 3}
    assert cli.ok("limit", "drop", "gateway", "--dry-run").out == "gateway would be dropped\n"
    assert "Nobody can be asked" in cli.refused(2, "limit", "drop", "gateway")
    assert cli.ok("limit", "drop", "gateway", "--yes").out == "gateway is dropped\n"
    assert [limit["name"] for limit in cli.ok("limit", "list", "--json").objects] == ["per-user"]


def test_claims_obey_a_limit_that_was_put(cli: Cli) -> None:
    cli.ok("limit", "put", "one", "--cap", "1")

    async def claimed(engine: Engine) -> int:
        await engine.join(Joining(worker="w", queues=("default",), types={"mail": TypeSettings()}))
        await engine.submit([NewTask(type="mail", payload=b"{}", limits=("one",)) for _ in range(3)])
        return len((await engine.claim("w", 1, ["default"], Room(10))).tasks)

    assert cli.do(claimed) == 1


def test_a_limit_of_the_code_is_dropped_by_nobody(cli: Cli) -> None:
    value = msgspec.json.encode({"cap": 2})
    cli.do(lambda engine: engine.join(Joining(worker="w", queues=("default",), types={}, limits={"declared": value})))
    assert cli.ok("limit", "list").lines == ["declared\t\t2 at once\t"]
    assert "declared by code" in cli.refused(1, "limit", "drop", "declared", "--yes")


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["put", "gateway"], 2, "it limits nothing"),
        (["put", "gateway", "--rate", "fast"], 2, "is not a rate"),
        (["put", "gateway", "--cap", "-1"], 2, "out of range"),
        (["put", "Gate way", "--cap", "1"], 2, "is not a name"),
        (["drop", "nothing", "--yes"], 1, "there is no limit 'nothing'"),
    ],
)
def test_limits_that_are_wrong(cli: Cli, arguments: list[str], code: int, said: str) -> None:
    assert said in cli.refused(code, "limit", *arguments)


# Leaders


def test_leaders_are_listed_by_role(cli: Cli) -> None:
    lines = cli.ok("leader", "list").lines
    assert lines[0] == "role\tholder\tterm"
    assert [line.split("\t")[:2] for line in lines[1:]] == [["schedules", ""], ["pruning", ""], ["outbox", ""]]
    cli.do(lambda engine: engine.lead("pruning", "anna"))
    found = {str(each["role"]): each for each in cli.ok("leader", "list", "--json").objects}
    assert (found["pruning"]["holder"], found["schedules"]["holder"]) == ("anna", None)
    assert isinstance(found["pruning"]["term"], int)


# Queues


def stored(cli: Cli, queue: str) -> QueueSettings | None:
    items = {item.name: item for item in cli.do(lambda engine: engine.items("queue"))}
    return msgspec.json.decode(items[queue].value, type=QueueSettings) if queue in items else None


def test_what_a_queue_is_set_to_stays_until_it_is_set_otherwise(cli: Cli) -> None:
    cli.submit("work", queue="mail")
    said = cli.ok("queue", "set", "mail", "--fair", "tenant", "--weight", "acme=3", "--weight", "beta=2")
    assert said.lines == ["queue:   mail", "fair:    tenant", "weights: acme=3, beta=2"]
    cli.ok("queue", "set", "mail", "--weight", "acme=5", "--priorities", "8,4,2,1", "--partitions", "4")
    assert stored(cli, "mail") == QueueSettings(weights={"acme": 5, "beta": 2}, priorities=(1, 2, 4, 8), fair="tenant", partitions=4)
    [shown] = cli.ok("queue", "list", "--json").objects
    assert shown["settings"] == {"weights": {"acme": 5, "beta": 2}, "priorities": [1, 2, 4, 8], "fair": "tenant", "partitions": 4}
    cli.ok("queue", "set", "mail", "--defaults", "--fair", "tenant")
    assert stored(cli, "mail") == QueueSettings(fair="tenant")
    cli.ok("queue", "set", "mail", "--defaults")
    assert stored(cli, "mail") is None


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["mail"], 2, "nothing is set"),
        (["mail", "--weight", "acme"], 2, "is no weight"),
        (["mail", "--weight", "acme=0"], 2, "out of range"),
        (["mail", "--priorities", "1,2"], 2, "says no turns"),
        (["mail", "--priorities", "4,3,2,x"], 2, "says no turns"),
        (["mail", "--partitions", "65"], 2, "out of range"),
        (["mial", "--fair", "tenant"], 1, "did you mean 'mail'?"),
    ],
)
def test_queue_settings_that_are_wrong(cli: Cli, arguments: list[str], code: int, said: str) -> None:
    cli.submit("work", queue="mail")
    assert said in cli.refused(code, "queue", "set", *arguments)


def test_a_list_of_queues_in_a_pipe_says_what_its_figures_are(cli: Cli) -> None:
    cli.submit("work", queue="mail")
    heading, row = (line.split("\t") for line in cli.ok("queue", "list").lines)
    assert dict(zip(heading, row, strict=True)) | {"queue": "mail", "pending": "1", "dead": "0"} == dict(zip(heading, row, strict=True))


# Signals and edges


def test_a_signal_wakes_the_task_that_waits_for_it(cli: Cli) -> None:
    async def waiting(engine: Engine) -> str:
        await engine.join(Joining(worker="w", queues=("default",), types={"mail": TypeSettings()}))
        await engine.submit([NewTask(type="mail", payload=b"{}")])
        [task] = (await engine.claim("w", 1, ["default"], Room(1))).tasks
        await engine.finish([Outcome(task=task.id, worker="w", token=task.token, ending=Ending.WAITING, signals=("approved",))])
        return task.id

    id = cli.do(waiting)
    assert cli.ok("task", "signal", id, "approved", '{"by": "ann"}', "--signal-id", "form-17").out == "1\n"
    assert cli.ok("task", "signal", id, "approved", '{"by": "ann"}', "--signal-id", "form-17", "--json").objects == [
        {"id": id, "name": "approved", "number": 1}
    ]
    assert cli.ok("task", "get", id, "--json").objects[0]["state"] == State.PENDING.value
    [task] = cli.do(_claimed)
    assert [(signal.name, json.loads(signal.data)) for signal in task.signals] == [("approved", {"by": "ann"})]


async def _claimed(engine: Engine) -> tuple[Claimed, ...]:
    return (await engine.claim("w", 2, ["default"], Room(1))).tasks


def test_a_signal_to_nobody_or_with_no_json_is_refused(cli: Cli) -> None:
    assert "there is no task" in cli.refused(1, "task", "signal", new_id(), "approved")
    [id] = cli.submit("work")
    assert "line 1" in cli.refused(2, "task", "signal", id, "approved", "{nonsense")


def test_edges_are_listed_with_what_they_came_to(cli: Cli) -> None:
    children = cli.submit("first", "second")
    cli.end(Ending.COMPLETED, "first", result=b'"done"')
    new = NewTask(type="last", queue="default", payload=b"{}", edges=tuple(Edge(child) for child in children))
    cli.do(lambda engine: engine.submit([new]))
    lines = cli.ok("task", "edges", new.id).lines
    assert lines == [f'{children[0]}\tcompleted\tcancel\t"done"', f"{children[1]}\topen\tcancel\t"]
    first, second = cli.ok("task", "edges", new.id, "--json").objects
    assert (first["result"], first["outcome"], second["outcome"]) == ("done", "completed", None)
    assert cli.ok("task", "edges", children[0]).out == ""
    assert "there is no task" in cli.refused(1, "task", "edges", new_id())
