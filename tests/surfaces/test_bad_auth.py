"""Callers without a key, with half of one, with one for something else, with one of another tenant; and what of a key is ever written down."""

from __future__ import annotations

import asyncio
import json
import re
import socket
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from taskmill.clock import SystemClock
from taskmill.config import load
from taskmill.engine import Call, Engine, observed
from taskmill.engines import create
from taskmill.errors import NotFound, RateLimited
from taskmill.server.access import MOST_FAILURES, Caller, Keys, Scope, Unauthenticated, create_key
from taskmill.server.desk import Desk
from taskmill.server.rest import ROUTES
from taskmill.server.service import Service
from taskmill.task import NewTask
from tests.surfaces.bad_bodies import GOOD, task
from tests.surfaces.bad_http import TASKS, Server, problem, read_answer, request, serving, upgraded

SECRET = "canary-payload-5f1c"


def made(url: str, *scopes: str, tenant: str | None = None, rate: int | None = None, depth: int | None = None) -> str:
    async def run() -> str:
        engine = create(url)
        await engine.open()
        try:
            return (await create_key(engine, name="test", scopes=scopes, tenant=tenant, rate=rate, depth=depth))[0]
        finally:
            await engine.close()

    return asyncio.run(run())


class Keyed(NamedTuple):
    """A server whose store has keys."""

    server: Server
    admin: str
    reader: str
    submitter: str
    acme: str
    globex: str

    def call(self, key: str, method: str, target: str, body: object = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        return self.server.raw(request(method, target, data, {"Authorization": f"Bearer {key}"}), method)


@pytest.fixture(scope="module")
def keyed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Keyed]:
    folder = tmp_path_factory.mktemp("keyed")
    url = upgraded(f"sqlite:///{folder}/store.db")
    admin, reader, submitter = made(url, "admin"), made(url, "read"), made(url, "submit")
    acme, globex = (made(url, "submit", "read", "read-payload", "cancel", tenant=tenant) for tenant in ("acme", "globex"))
    with serving(url, folder, admin) as server:
        found = Keyed(server, admin, reader, submitter, acme, globex)
        yield found
    said = server.said()
    for token in (*found[1:], *(token[-43:] for token in found[1:]), SECRET):
        assert token not in said


def unknown(keyed: Keyed, head: bytes) -> None:
    """Refused before anything else is looked at."""
    before = keyed.server.ids()
    for method, path in (("GET", TASKS), ("GET", f"{TASKS}/x"), ("POST", f"{TASKS}:batch"), ("GET", "/metrics")):
        answer = keyed.server.raw(f"{method} {path} HTTP/1.1\r\nHost: a.example\r\n".encode() + head + b"\r\n")
        problem(answer, answer.status, "unauthenticated" if answer.status == 401 else "too_many_failures")
        assert answer.status in {401, 429}
        if answer.status == 401:
            assert answer.headers["www-authenticate"] == "Bearer"
        else:
            assert 1 <= int(answer.headers["retry-after"]) <= 60
    assert keyed.server.ids() == before


def test_no_key(keyed: Keyed) -> None:
    unknown(keyed, b"")


def forms(token: str) -> dict[str, bytes]:
    text = token.encode()
    return {
        "empty": b"Authorization:\r\n",
        "bearer alone": b"Authorization: Bearer\r\n",
        "bearer and blanks": b"Authorization: Bearer   \r\n",
        "token alone": b"Authorization: " + text + b"\r\n",
        "basic": b"Authorization: Basic dG06dG0=\r\n",
        "basic with the token": b"Authorization: Basic " + text + b"\r\n",
        "tab": b"Authorization: Bearer\t" + text + b"\r\n",
        "cut off": b"Authorization: Bearer " + text[:-1] + b"\r\n",
        "longer": b"Authorization: Bearer " + text + b"A\r\n",
        "other case": b"Authorization: Bearer " + text.upper() + b"\r\n",
        "another end": b"Authorization: Bearer " + text[:-1] + (b"A" if text[-1:] != b"A" else b"B") + b"\r\n",
        "another id": b"Authorization: Bearer tm_000000000000" + text[15:] + b"\r\n",
        "not ascii": b"Authorization: Bearer \xff" + text + b"\r\n",
        "umlaut": "Authorization: Bearer tm_ü\r\n".encode(),
        "10 KB": b"Authorization: Bearer " + b"a" * 10_240 + b"\r\n",
        "two": b"Authorization: Bearer " + text + b"\r\nAuthorization: Bearer " + text + b"\r\n",
        "two in one": b"Authorization: Bearer " + text + b", Bearer " + text + b"\r\n",
        "sql": b"Authorization: Bearer ' OR 1=1--\r\n",
        "another header": b"X-Api-Key: " + text + b"\r\n",
        "cookie": b"Cookie: key=" + text + b"\r\n",
    }


@pytest.mark.parametrize("form", forms("tm_0"))
def test_what_is_no_key(keyed: Keyed, form: str) -> None:
    unknown(keyed, forms(keyed.admin)[form])


@pytest.mark.parametrize("scheme", ["Bearer", "bearer", "BEARER", "Bearer  "])
def test_what_is_a_key(keyed: Keyed, scheme: str) -> None:
    assert keyed.server.raw(request("GET", TASKS, headers={"Authorization": f"{scheme} {keyed.reader}", "Host": "any.example"})).status == 200


def test_a_refused_caller_cannot_make_the_server_read_a_body(keyed: Keyed) -> None:
    answer = keyed.server.raw(request("POST", TASKS, headers={"Content-Type": "application/json", "Content-Length": "4000000"}))
    problem(answer, answer.status)
    assert answer.status in {401, 429}
    assert answer.headers["connection"] == "close"


@pytest.mark.parametrize("name", ["key", "api_key", "token", "access_token", "authorization"])
def test_a_key_in_the_query_is_none_and_is_not_written_down(keyed: Keyed, name: str) -> None:
    for key in (keyed.admin, keyed.submitter):
        answer = keyed.server.raw(request("GET", f"{TASKS}?{name}={key}"))
        problem(answer, answer.status)
        assert answer.status in {401, 429}
        assert key not in answer.body.decode()
        assert key[-43:] not in keyed.server.said()


def test_a_key_in_the_query_beside_a_right_one(keyed: Keyed) -> None:
    answer = keyed.call(keyed.reader, "GET", f"{TASKS}?key={keyed.admin}")
    problem(answer, 422, "unknown_field", "key")
    assert keyed.admin not in answer.body.decode()


# Scopes


def test_a_key_that_may_only_read(keyed: Keyed) -> None:
    before = keyed.server.ids()
    for target, body in ((TASKS, GOOD), (f"{TASKS}:batch", {"tasks": [GOOD]}), (f"{TASKS}:cancel", {"filter": {}, "confirm": True}), (f"{TASKS}/x:delete", {})):
        problem(keyed.call(keyed.reader, "POST", target, body), 403, "forbidden")
    assert keyed.server.ids() == before


def test_a_key_that_may_only_submit(keyed: Keyed) -> None:
    id = keyed.call(keyed.submitter, "POST", TASKS, GOOD).data["id"]
    for target in (TASKS, f"{TASKS}/{id}", f"{TASKS}/{id}/attempts", f"{TASKS}:count", "/metrics"):
        problem(keyed.call(keyed.submitter, "GET", target), 403, "forbidden")


def test_payloads_are_for_those_who_may_read_them(keyed: Keyed) -> None:
    id = keyed.call(keyed.submitter, "POST", TASKS, {**GOOD, "payload": SECRET, "headers": {"x": SECRET}}).data["id"]
    for target in (TASKS, f"{TASKS}/{id}", f"{TASKS}/{id}?wait=0s"):
        assert SECRET not in keyed.call(keyed.reader, "GET", target).body.decode()
    assert SECRET in keyed.call(keyed.admin, "GET", f"{TASKS}/{id}").body.decode()


@pytest.mark.parametrize("route", [route for route in ROUTES if route.scope is not None], ids=lambda route: f"{route.method} {route.path}")
def test_a_refusal_for_want_of_a_scope_comes_before_all_else(keyed: Keyed, route: Any) -> None:
    """Nobody learns by a bad body, a bad query or an id what a key may not ask."""
    other = keyed.reader if route.scope is not Scope.READ else keyed.submitter
    target = re.sub(r"\{\w+\}", "x", route.path) + "?nonsense"
    answer = keyed.server.raw(request(route.method, target, b"{" if route.body else None, {"Authorization": f"Bearer {other}"}))
    problem(answer, 403, "forbidden")


# Tenants


def same(one: Any, other: Any, *ids: str) -> None:
    """Two answers that differ in nothing but ids."""
    texts = []
    for answer in (one, other):
        text = answer.body.decode().replace(answer.headers["x-request-id"], "…")
        for id in ids:
            text = text.replace(id, "…")
        texts.append((answer.status, text, sorted(name for name in answer.headers if name != "date")))
    assert texts[0] == texts[1]


def test_another_tenant_s_task_is_like_one_that_never_was(keyed: Keyed) -> None:
    id = keyed.call(keyed.acme, "POST", TASKS, GOOD).data["id"]
    never = id[:-4] + ("0000" if id[-4:] != "0000" else "1111")
    assert keyed.call(keyed.acme, "GET", f"{TASKS}/{id}").status == 200
    for method, rest, body in (
        ("GET", "", None), ("GET", "?wait=0s", None), ("GET", "/attempts", None), ("GET", "/edges", None), ("POST", ":cancel", {}), ("POST", ":requeue", {}),
        ("POST", ":delete", {}), ("POST", ":cancel", {"version": 1}), ("POST", ":signal", {"name": "go"}),
    ):  # fmt: skip
        foreign, missing = (keyed.call(keyed.globex, method, f"{TASKS}/{each}{rest}", body) for each in (id, never))
        problem(foreign, 404, "not_found", "id")
        same(foreign, missing, id, never)
    for verb in ("cancel", "requeue", "delete"):
        for dry_run in (False, True):
            foreign, missing = (keyed.call(keyed.globex, "POST", f"{TASKS}:{verb}", {"ids": [each], "dry_run": dry_run}) for each in (id, never))
            same(foreign, missing)
    same(*(keyed.call(keyed.globex, "POST", TASKS, {**GOOD, "after": each}) for each in (id, never)), id, never)
    assert keyed.call(keyed.acme, "GET", f"{TASKS}/{id}").data["state"] == "pending"


def test_a_tenant_sees_and_counts_its_own(keyed: Keyed) -> None:
    mine = keyed.call(keyed.acme, "POST", TASKS, {**GOOD, "tags": {"mine": "1"}}).data["id"]
    assert mine not in {task["id"] for task in keyed.call(keyed.globex, "GET", f"{TASKS}?limit=1000").data["tasks"]}
    assert keyed.call(keyed.globex, "GET", f"{TASKS}:count?tag=mine=1").data == {"count": 0}
    assert keyed.call(keyed.globex, "POST", f"{TASKS}:cancel", {"filter": {"tag": ["mine=1"]}, "confirm": True}).data["matched"] == 0
    problem(keyed.call(keyed.globex, "GET", f"{TASKS}?tenant=acme"), 403, "tenant_key")
    problem(keyed.call(keyed.globex, "GET", "/metrics"), 403, "tenant_key")
    problem(keyed.call(keyed.globex, "POST", TASKS, {**GOOD, "tenant": "acme"}), 422, "unknown_field")
    assert keyed.call(keyed.acme, "GET", f"{TASKS}/{mine}").data["tenant"] == "acme"


async def with_service(url: str, folder: Path, act: Callable[[Desk, Engine, Counter[str]], Awaitable[None]]) -> None:
    calls: Counter[str] = Counter()

    def tell(call: Call) -> None:
        calls[f"{call.verb} {call.code}"] += 1

    engine = observed(create(url), tell)
    async with Service(engine, load({"url": url}, {}).settings, audit=folder / "audit.log") as service:
        await act(service.desk, engine, calls)


def test_a_foreign_task_takes_the_same_way_as_a_missing_one(tmp_path: Path) -> None:
    """The same calls of the store in the same number: nothing to be told apart by the clock."""
    url = upgraded(f"sqlite:///{tmp_path}/store.db")

    async def act(desk: Desk, engine: Engine, calls: Counter[str]) -> None:
        acme, globex = (Caller(key=name, scopes=frozenset(Scope) - {Scope.ADMIN}, tenant=name) for name in ("acme", "globex"))
        id = (await desk.submit(acme, NewTask(type="mail", queue="default"))).id
        ways: dict[str, list[Counter[str]]] = {}
        verbs: dict[str, Callable[[str], Awaitable[object]]] = {
            "get": lambda id: desk.get(globex, id),
            "result": lambda id: desk.result(globex, id, 0),
            "attempts": lambda id: desk.attempts(globex, id),
            "edges": lambda id: desk.edges(globex, id),
            "cancel": lambda id: desk.change(globex, "cancel", id),
            "signal": lambda id: desk.signal(globex, id, "go", b"1", None),
        }
        for each in (id, engine.new_id("default")):
            for name, ask in verbs.items():
                calls.clear()
                with pytest.raises(NotFound):
                    await ask(each)
                ways.setdefault(name, []).append(Counter(calls))
        assert all(foreign == missing and foreign for foreign, missing in ways.values()), ways

    asyncio.run(with_service(url, tmp_path, act))


# Guessing


def test_ten_thousand_guesses_from_one_address(keyed: Keyed) -> None:
    """From some number on they are told to wait; a right key from the same address never is."""
    guess = request("GET", TASKS, headers={"Authorization": "Bearer tm_000000000000_" + "A" * 43})
    statuses: Counter[int] = Counter()
    answer = keyed.server.raw(guess)
    with keyed.server.connect() as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for number in range(9_999):
            connection.sendall(guess)
            answer = read_answer(connection)
            statuses[answer.status] += 1
            if number % 1_000 == 999:
                assert keyed.call(keyed.reader, "GET", TASKS).status == 200
    assert set(statuses) <= {401, 429}
    assert statuses[401] <= MOST_FAILURES
    assert problem(answer, 429, "too_many_failures")["hint"]
    assert keyed.call(keyed.submitter, "POST", TASKS, GOOD).status == 202
    assert "tm_000000000000" not in keyed.server.said()


def test_guesses_are_counted_by_address(tmp_path: Path) -> None:
    url = upgraded(f"sqlite:///{tmp_path}/store.db")
    made(url, "admin")

    async def run() -> None:
        engine = create(url)
        await engine.open()
        keys = Keys(engine, clock=SystemClock())
        for _ in range(MOST_FAILURES):
            with pytest.raises(Unauthenticated):
                await keys.identify("tm_x", "192.0.2.1")
        with pytest.raises(RateLimited):
            await keys.identify("tm_x", "192.0.2.1")
        with pytest.raises(Unauthenticated):
            await keys.identify("tm_x", "192.0.2.2")
        for number in range(MOST_FAILURES):  # all of them can be one machine
            with pytest.raises(Unauthenticated):
                await keys.identify("tm_x", f"2001:db8:0:1::{number:x}")
        with pytest.raises(RateLimited):
            await keys.identify("tm_x", "2001:db8:0:1:ffff::1")
        with pytest.raises(Unauthenticated):
            await keys.identify("tm_x", "2001:db8:0:2::1")
        with pytest.raises(Unauthenticated):
            await keys.identify(None, "192.0.2.1")
        await engine.close()

    asyncio.run(run())


def test_an_address_that_a_caller_makes_up_is_not_believed(keyed: Keyed) -> None:
    heads = [{"Authorization": "Bearer tm_x", "X-Forwarded-For": f"192.0.2.{n}", "Forwarded": f"for=192.0.2.{n}"} for n in range(MOST_FAILURES + 2)]
    answers = [keyed.server.raw(request("GET", TASKS, headers=head)) for head in heads]
    problem(answers[-1], 429, "too_many_failures")


# Quotas


def test_quotas_of_a_key(tmp_path: Path) -> None:
    url = upgraded(f"sqlite:///{tmp_path}/store.db")
    slow, shallow = made(url, "read", rate=2), made(url, "submit", depth=1)
    with serving(url, tmp_path, made(url, "admin")) as server:
        answers = [server.raw(request("GET", TASKS, headers={"Authorization": f"Bearer {slow}"})) for _ in range(20)]
        refused = [answer for answer in answers if answer.status != 200]
        assert refused
        for answer in refused:
            problem(answer, 429, "request_quota")
            assert answer.headers["retry-after"] == "1"
        server.post(GOOD)
        answer = server.raw(request("POST", TASKS, task(), {"Authorization": f"Bearer {shallow}"}))
        problem(answer, 429, "queue_quota", "queue")
        assert server.call("GET", TASKS).status == 200
