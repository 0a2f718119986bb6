"""The Client: an App's verbs for a program that has no store, over a server.

    client = Client("https://tasks.example.com", key)      # or TASKMILL_SERVER and TASKMILL_API_KEY, then taskmill.toml

    handle = await client.submit("send_welcome", {"user_id": 42})
    print(await handle.result(timeout="30s"))

Making a Client reads and opens nothing. Its connections are opened at first use, on the loop of that use, and callers on other loops and threads are taken
there, as with an App. A module of `Tasks` serves both: the program of the workers has `app.include(tasks)`, the one that only submits `client.include(tasks)`.
"""

from __future__ import annotations

import asyncio
import logging
import os
import ssl
from collections import ChainMap
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from typing import Any, NoReturn, TypedDict, TypeVar, Unpack
from urllib.parse import urlsplit

from taskmill import codec, config, requests, tracing
from taskmill.client.http import Http
from taskmill.client.operations import RemoteOperations, Sent
from taskmill.client.records import shown, task_body
from taskmill.clock import MILLISECOND, DurationLike, duration
from taskmill.config import Loaded, Secret, Settings, is_loopback
from taskmill.declared import own_fields, settings_of
from taskmill.engine import Filter, Submitted, Target
from taskmill.errors import InvalidInput, InvalidSettings
from taskmill.handle import Handle
from taskmill.operations import Tally, submitted
from taskmill.options import InstantLike
from taskmill.requests import Words, check_condition
from taskmill.submitting import Submitter
from taskmill.sync import SyncSubmitter, check_blocking
from taskmill.task import Attempt, State, Task, TypeSettings, check_range, new_id
from taskmill.tasks import Call, Tasks, TaskType

__all__ = ["Client", "SyncClient", "Which"]

R = TypeVar("R")
log = logging.getLogger("taskmill")

WORDS = Words(tag="tags")


class Which(TypedDict, total=False):
    """Which tasks: all that is given holds."""

    state: str | State | Iterable[str]
    type: str | Iterable[str]
    queue: str | Iterable[str]
    tenant: str | None
    tags: Mapping[str, str]
    since: InstantLike | None
    """Submitted then or later."""
    until: InstantLike | None


class Client(Submitter[RemoteOperations]):
    """One server, and the tasks that are submitted to it."""

    word = "client"

    def __init__(
        self,
        url: str | Sequence[str] | None = None,
        key: str | Secret | None = None,
        *,
        timeout: DurationLike = "30s",
        retries: int = 20,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        """`url`: a server, or several over the same store (a list, or a text with commas); when one cannot be reached, the next is asked. `timeout`: how
        long one verb may take, all its repeats together, beside what it waits for a task; `retries`: at most so many repeats of a request; `tls`: for a
        server with a certificate of your own, or that wants one of yours."""
        server = url if url is None or isinstance(url, str) else ",".join(url)
        self._arguments: dict[str, object] = {"server": server, "api_key": Secret(key) if isinstance(key, str) else key}
        self._timeout = duration(timeout, field="timeout", minimum=MILLISECOND)
        self._retries = check_range(retries, "retries", 0, 1_000)
        self._tls = tls
        self._loaded: Loaded | None = None
        self._warned = False
        self._special: dict[TaskType[..., Any, Any], bool] = {}
        self.types: ChainMap[str, TaskType[..., Any, Any]] = ChainMap()
        super().__init__()

    def __repr__(self) -> str:
        return f"<Client{'' if self._loaded is None else f' of {self.settings.server}'}>"

    @property
    def sync(self) -> SyncClient:
        """The client's verbs for callers without an event loop."""
        return SyncClient(self)

    # Settings

    @property
    def settings(self) -> Settings:
        """The settings in force; read when first asked for."""
        if self._loaded is None:
            self._loaded = config.load(self._arguments, os.environ)
        return self._loaded.settings

    def include(self, tasks: Tasks) -> None:
        """From here on these are submitted through this client: `await send_welcome.submit(42)`."""
        tasks.submit_through(self)
        self.types.maps.append(tasks.types)

    def type_named(self, name: str) -> TaskType[..., Any, Any] | None:
        return self.types.get(name)

    # Opening and closing

    async def _connect(self) -> None:
        bases, key = [_base(url.strip()) for url in self.settings.server.split(",")], _key(self.settings.api_key)
        clear = [base for base in bases if base.startswith("http:") and not is_loopback(urlsplit(base).hostname or "")]
        if key is not None and clear and not self._warned:
            self._warned = True
            log.warning("the API key goes to %s in the clear: anybody on the way can read it; use https://", clear[0])
        self._operations = RemoteOperations(Http(bases, key, timeout=self._timeout, retries=self._retries, tls=self._tls))

    async def _let_go(self, *, at_home: bool) -> None:
        operations = self._operations
        if operations is not None and at_home:
            await operations.drain()
        self._leave_behind(operations if at_home else None)
        if operations is not None and at_home:
            await operations.close()

    def _leave_behind(self, kept: RemoteOperations | None = None) -> None:
        if self._operations is not None and self._operations is not kept:
            self._operations.http.abandon()
        self._forget()

    def _inherit(self) -> None:
        if self._operations is not None:
            _inherited.append(self._operations)

    # Submitting

    async def submit_call(self, call: Call[R]) -> Handle[R]:
        if self.home is not asyncio.get_running_loop() or self._operations is None:
            return await self._at_home(lambda: self._submit(call))
        return await self._submit(call)

    async def _submit(self, call: Call[R]) -> Handle[R]:
        tracer = tracing.tracer()
        if tracer is None:
            answer = submitted(await self._offer(call))
        else:
            with tracing.send(tracer, call.new(), call.fields.get("queue")) as sending:
                answer = submitted(await self._offer(_carried(call, sending)))
                sending.told(answer)
        return Handle(self, answer.id, call.type, self.reader(call), answer)

    async def _offer(self, call: Call[Any]) -> Submitted:
        sent = self._sent(call)
        answer = await self.operations.offer(sent)
        return await self.operations.offer(self._sent_whole(call, sent.id)) if _type_is_unknown(call, answer) else answer

    async def submit_calls(self, calls: Iterable[Call[R]]) -> list[Handle[R]]:
        return await self._at_home(lambda: self._submit_calls(calls))

    async def _submit_calls(self, calls: Iterable[Call[R]]) -> list[Handle[R]]:
        tracer = tracing.tracer()
        if tracer is None:
            return await self._offer_calls(calls)
        with tracing.send(tracer) as sending:
            handles = await self._offer_calls(_carried(call, sending) for call in calls)
            sending.counted(len(handles))
            return handles

    async def _offer_calls(self, calls: Iterable[Call[R]]) -> list[Handle[R]]:
        sent: list[tuple[Call[R], str]] = []
        answers = list(await self.operations.offer_many(self._noted(calls, sent)))
        again = [place for place, ((call, _), answer) in enumerate(zip(sent, answers, strict=True)) if _type_is_unknown(call, answer)]
        if again:
            whole = await self.operations.offer_many([self._sent_whole(*sent[place]) for place in again])
            for place, answer in zip(again, whole, strict=True):
                answers[place] = answer
        return [Handle(self, submitted(answer).id, call.type, self.reader(call), answer) for (call, _), answer in zip(sent, answers, strict=True)]

    def _noted(self, calls: Iterable[Call[R]], noted: list[tuple[Call[R], str]]) -> Iterator[Sent]:
        for call in calls:
            sent = self._sent(call)
            noted.append((call, sent.id))
            yield sent

    def _sent(self, call: Call[Any]) -> Sent:
        """A type that declares more than its queue goes by its name alone: what its workers have registered holds, and what operators have put over it."""
        if call.tx is not None:
            raise InvalidInput(
                "a server takes no part in a transaction",
                code="no_transaction",
                field="tx",
                hint="submit after the commit, with an idempotency_key; or use an App",
            )
        if call.task_type is not None and self._is_special(call.task_type) and call.fields.get("queue") == call.task_type.settings.queue:
            call = call.with_fields({name: value for name, value in call.fields.items() if name != "queue"})
        return self._body(call, new_id())

    def _sent_whole(self, call: Call[Any], id: str) -> Sent:
        """No worker has registered the type yet, so the task itself carries what its type says. Limits only have a name: one that nobody has put is refused."""
        assert call.task_type is not None
        settings = settings_of(call.task_type, self.settings)
        own = {**own_fields(call.new(), settings), "limits": settings.limits, "on_limit": settings.on_limit}
        return self._body(call.with_fields({**own, **call.fields}), id)

    def _body(self, call: Call[Any], id: str) -> Sent:
        given: str = call.fields.get("id") or id
        return Sent(given, given == id, task_body(call.type, call.payload, given, call.fields, durability=call.durability, expires=call.expires))

    def _is_special(self, declared: TaskType[..., Any, Any]) -> bool:
        found = self._special.get(declared)
        if found is None:
            settings = settings_of(declared, self.settings)
            found = self._special[declared] = settings != TypeSettings(queue=settings.queue)
        return found

    def block_here(self, verb: str, make: Callable[[], Coroutine[Any, Any, R]]) -> R:
        return self.block(verb, make)

    def reader(self, call: Call[Any] | None = None) -> Callable[[bytes], object]:
        read = super().reader(call)
        return lambda data: read(shown(data))

    # Looking

    def get(self, id: str) -> Coroutine[Any, Any, Task]:
        """The whole record. NotFound, or Expired with the state it ended in."""
        return self.at_home("client.get()", lambda: self.operations.get(id))

    def attempts(self, id: str) -> Coroutine[Any, Any, tuple[Attempt, ...]]:
        """Every attempt, oldest first."""
        return self.at_home("client.attempts()", lambda: self.operations.attempts(id))

    async def list(self, **which: Unpack[Which]) -> AsyncIterator[Task]:
        """All that match, newest first: `async for task in client.list(state="dead", queue="mail")`."""
        wanted, cursor = filter_of(which), None
        while True:
            page = await self._page(wanted, cursor)
            for task in page.tasks:
                yield task
            cursor = page.cursor
            if cursor is None:
                return

    async def _page(self, which: Filter, cursor: str | None) -> Any:
        return await self._at_home(lambda: self.operations.list(which, after=cursor, n=200))

    def count(self, **which: Unpack[Which]) -> Coroutine[Any, Any, int]:
        """How many match."""
        wanted = filter_of(which)
        return self.at_home("client.count()", lambda: self.operations.count(wanted))

    # Changing

    def cancel(
        self, ids: str | Sequence[str] | None = None, *, confirm: bool = False, dry_run: bool = False, **which: Unpack[Which]
    ) -> Coroutine[Any, Any, Tally]:
        """Waiting tasks are cancelled, running ones told: those named, or all that match, if you `confirm` it. `dry_run` only counts."""
        wanted = _which(ids, which, confirm=confirm, dry_run=dry_run)
        return self.at_home("client.cancel()", lambda: self.operations.cancel(wanted, dry_run=dry_run))

    def requeue(
        self, ids: str | Sequence[str] | None = None, *, from_start: bool = False, confirm: bool = False, dry_run: bool = False, **which: Unpack[Which]
    ) -> Coroutine[Any, Any, Tally]:
        """Ended tasks are ready again: those named, or all that match, the dead ones where no state is given."""
        wanted = _which(ids, which, confirm=confirm, dry_run=dry_run)
        return self.at_home("client.requeue()", lambda: self.operations.requeue(wanted, from_start=from_start, dry_run=dry_run))

    def delete(
        self, ids: str | Sequence[str] | None = None, *, confirm: bool = False, dry_run: bool = False, **which: Unpack[Which]
    ) -> Coroutine[Any, Any, Tally]:
        """The records of ended tasks are removed: of those named, or of all that match."""
        wanted = _which(ids, which, confirm=confirm, dry_run=dry_run)
        return self.at_home("client.delete()", lambda: self.operations.delete(wanted, dry_run=dry_run))

    def signal(self, id: str, name: str, data: object = None, *, signal_id: str | None = None) -> Coroutine[Any, Any, int]:
        """Send a task a named value, once by its signal id; answers its number."""
        encoded = codec.encode(data, field="data")
        once = signal_id or new_id()
        return self.at_home("client.signal()", lambda: self.operations.signal(id, name, encoded, signal_id=once))


class SyncClient(SyncSubmitter):
    """The client's own verbs, blocking."""

    __slots__ = ()
    _app: Client

    def get(self, id: str) -> Task:
        return self._app.block("client.sync.get()", lambda: self._app.get(id))

    def attempts(self, id: str) -> tuple[Attempt, ...]:
        return self._app.block("client.sync.attempts()", lambda: self._app.attempts(id))

    def list(self, **which: Unpack[Which]) -> Iterator[Task]:
        check_blocking("client.sync.list()")
        found = self._app.list(**which)
        while True:
            try:
                yield self._app.block("client.sync.list()", found.__anext__)  # type: ignore[arg-type]
            except StopAsyncIteration:
                return

    def count(self, **which: Unpack[Which]) -> int:
        return self._app.block("client.sync.count()", lambda: self._app.count(**which))

    def cancel(self, ids: str | Sequence[str] | None = None, *, confirm: bool = False, dry_run: bool = False, **which: Unpack[Which]) -> Tally:
        return self._app.block("client.sync.cancel()", lambda: self._app.cancel(ids, confirm=confirm, dry_run=dry_run, **which))

    def requeue(
        self, ids: str | Sequence[str] | None = None, *, from_start: bool = False, confirm: bool = False, dry_run: bool = False, **which: Unpack[Which]
    ) -> Tally:
        return self._app.block("client.sync.requeue()", lambda: self._app.requeue(ids, from_start=from_start, confirm=confirm, dry_run=dry_run, **which))

    def delete(self, ids: str | Sequence[str] | None = None, *, confirm: bool = False, dry_run: bool = False, **which: Unpack[Which]) -> Tally:
        return self._app.block("client.sync.delete()", lambda: self._app.delete(ids, confirm=confirm, dry_run=dry_run, **which))

    def signal(self, id: str, name: str, data: object = None, *, signal_id: str | None = None) -> int:
        return self._app.block("client.sync.signal()", lambda: self._app.signal(id, name, data, signal_id=signal_id))


def _carried(call: Call[R], sending: tracing.Sending) -> Call[R]:
    return call.with_fields({**call.fields, "headers": sending.carried(call.new()).headers})


def _type_is_unknown(call: Call[Any], answer: Submitted) -> bool:
    return call.task_type is not None and answer.error is not None and answer.error.code == "unknown_type"


# Which tasks


def filter_of(which: Which) -> Filter:
    """The filter that options make."""
    for name in which:
        check_condition(name, Which.__annotations__)
    return requests.filter_of(
        state=which.get("state"),
        type=which.get("type"),
        queue=which.get("queue"),
        tenant=which.get("tenant"),
        tags=which.get("tags") or {},
        since=which.get("since"),
        until=which.get("until"),
        words=WORDS,
    )


def _which(ids: str | Sequence[str] | None, which: Which, *, confirm: bool, dry_run: bool) -> Sequence[Target] | Filter:
    """The tasks that a change is about: those named, or all that match."""
    named = [ids] if isinstance(ids, str) else ids
    found = requests.which_of(named, filter_of(which) if which else None, confirm=confirm, dry_run=dry_run, words=WORDS)
    return found if isinstance(found, Filter) else [Target(id) for id in found]


# The server and the key


def _base(url: str) -> str:
    """Where the server is; a path is kept, for one that stands behind a proxy."""
    try:
        parts = urlsplit(url)
        port_is_right = parts.port is None or parts.port > 0
    except ValueError:
        _refuse("server", "it is not a URL", "write http://host:8080 or https://host")
    if parts.scheme not in {"http", "https"} or not parts.hostname or not port_is_right:
        _refuse("server", "it is not the URL of a server", "write http://host:8080 or https://host")
    if parts.username is not None or parts.password is not None:
        _refuse("server", "a URL of a server has no user and no password", "give the API key by itself: Client(url, key), or TASKMILL_API_KEY")
    if parts.query or parts.fragment:
        _refuse("server", "a URL of a server ends with its path", "leave out what stands behind ? or #")
    return url.rstrip("/")


def _key(key: Secret | None) -> Secret | None:
    if key is not None and not (key.reveal().isascii() and key.reveal().isprintable() and key.reveal().strip() == key.reveal() != ""):
        _refuse("api_key", "it is not an API key", "`taskmill key create` makes one; it begins with tm_")
    return key


def _refuse(field: str, message: str, hint: str) -> NoReturn:
    raise InvalidSettings(message, code="invalid_value", field=field, hint=hint) from None


_inherited: list[RemoteOperations] = []
"""Of the parent of a fork, whose connections are not ours to close."""
