"""The page of the worker protocol is typed at a real server, message by message, and its tables are what the code says."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, get_args, get_type_hints

from taskmill.clock import SECOND, duration
from taskmill.config import Settings
from taskmill.operations.workers import COMMANDS
from taskmill.server import crew, declarations
from taskmill.server.rest import remote
from taskmill.task import LONGEST_REMOTE_LEASE, SHORTEST_REMOTE_LEASE
from tests.docs.test_docs import ROOT, code_words, table, text
from tests.surfaces.remote.serving import Server, serving

PAGE = ROOT / "docs" / "api" / "worker-protocol.md"
NAMED = {"worker", "id", "task", "token"}


def messages() -> list[tuple[str, dict[str, Any], dict[str, Any]]]:
    """Path, body and answer of every example, in the order of the page."""
    found = re.findall(r"^```http\nPOST (\S+)\n\n(.*?)\n```\n\n```json\n(.*?)\n```$", text(PAGE), re.MULTILINE | re.DOTALL)
    return [(path, json.loads(body), json.loads(answer)) for path, body, answer in found]


def learn(names: dict[str, str], shown: Any, real: Any) -> None:
    """What the page calls by one name has another on this server."""
    if isinstance(shown, dict):
        assert shown.keys() == real.keys()
        for name, value in shown.items():
            if name in NAMED and isinstance(value, str):
                names[value] = real[name]
            learn(names, value, real[name])
    elif isinstance(shown, list):
        assert len(shown) == len(real)
        for one, other in zip(shown, real, strict=True):
            learn(names, one, other)
    else:
        assert type(shown) is type(real), (shown, real)


def renamed(names: dict[str, str], value: Any) -> Any:
    text = json.dumps(value)
    for shown, real in names.items():
        text = text.replace(shown, real)
    return json.loads(text)


async def test_the_examples_are_a_session(tmp_path: Path) -> None:
    async with serving(f"sqlite:///{tmp_path / 'store.db'}", tmp_path) as server:
        names: dict[str, str] = {}
        for path, body, shown in messages():
            if path.endswith("/claim"):
                await submit_what_is_shown(server, shown)
            learn(names, shown, await server.anybody.post(path, renamed(names, body)))
    assert [path.rpartition("/")[2] for path, _, _ in messages()] == ["join", "claim", "beat", "checkpoint", "finish", "leave"]


async def submit_what_is_shown(server: Server, shown: dict[str, Any]) -> None:
    [task] = shown["tasks"]
    await server.anybody.submit(task["type"], task["payload"])


def test_every_message_has_its_section() -> None:
    assert {route.path for route in remote.ROUTES} == {path for path, _, _ in messages()}


def test_every_ending_stands_in_the_table_with_what_belongs_to_it() -> None:
    rows = {code_words([row[0]])[0]: set(code_words([row[2]])) for row in table(PAGE, "finish")}
    assert set(rows) == set(get_args(get_type_hints(remote.OutcomeBody)["ending"]))
    for ending, beside in rows.items():
        assert beside == {field for field, endings in remote.BELONGS.items() if ending in endings}, ending


def test_the_commands_are_those_of_operators() -> None:
    [row] = [row for row in table(PAGE, "beat") if row[0] == "`commands`"]
    assert code_words([row[1]]) == list(COMMANDS)


def test_the_limits() -> None:
    most = {row[0]: row[1] for row in table(PAGE, "Limits")}
    assert duration(most["`wait` of a claim"]) == remote.LONGEST_WAIT
    assert int(most["`slots` of a claim"]) == crew.MOST_SLOTS
    longest, shortest = re.findall(r"\d+[shd]", most["`lease`"])
    assert (duration(longest), duration(shortest)) == (LONGEST_REMOTE_LEASE, SHORTEST_REMOTE_LEASE)
    assert int(most["`leases` of a beat"]) == crew.MOST_LEASES
    assert int(most["outcomes or entries in a message"]) == remote.MOST_OUTCOMES
    assert most["types, queues, entries of `info` of a join"] == f"{declarations.MOST_TYPES}, {crew.MOST_QUEUES}, {crew.MOST_INFO}"
    assert f"{Settings().remote_lease // SECOND}s if it is not said" in text(PAGE)
    assert remote.BEATS == 3
