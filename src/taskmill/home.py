"""What is opened at its first use, on the loop of that use, and from then on used from anywhere: the store of an App, the connections of a Client.

That loop is its home: callers on other loops and threads are taken there. When that loop does not run any more (a second `asyncio.run`), the next use makes
a new home, and so does the child of a fork, which has no loop and no thread of its parent.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Any, Generic, Protocol, Self, TypeVar
from weakref import WeakSet

from taskmill.engine import Target
from taskmill.errors import AppError
from taskmill.operations import Tally
from taskmill.sync import Door, check_loop
from taskmill.task import State, Task

__all__ = ["Home", "Verbs"]

T = TypeVar("T")


class Verbs(Protocol):
    """What a handle asks for, of a store that is open here or behind a server."""

    async def get(self, id: str) -> Task: ...
    async def wait(self, ids: Sequence[str], timeout: int | None = None) -> Mapping[str, State]: ...
    async def cancel(self, which: Sequence[Target]) -> Tally: ...
    async def unseal(self, ids: Sequence[str]) -> None: ...


V = TypeVar("V", bound=Verbs)


class Home(Generic[V]):
    """Opens by itself, at home; `_connect` and `_let_go` say what that means."""

    word = "app"
    """What messages call it."""

    def __init__(self) -> None:
        self.door = Door()
        self._guard = threading.Lock()
        self._forget()
        _homes.add(self)

    def _forget(self) -> None:
        """As if never opened."""
        self.home: asyncio.AbstractEventLoop | None = None
        self._operations: V | None = None
        self._opening: asyncio.Task[None] | None = None

    @property
    def operations(self) -> V:
        """Every verb of the product, over what is open."""
        if self._operations is None:
            raise self.not_open()
        return self._operations

    def not_open(self) -> AppError:
        return AppError(f"the {self.word} is not open", code="not_open", hint=f"await {self.word}.open(), or use it as `async with {self.word}:`")

    # Opening and closing

    async def open(self) -> None:
        """Open it; every verb does it by itself."""
        here = asyncio.get_running_loop()
        with self._guard:
            if self.home is not None and self.home is not here and not self.home.is_running():
                self._leave_behind()
            if self.home is None:
                self.home = here
                self._opening = here.create_task(self._open())
            home, opening = self.home, self._opening
        if home is not here:
            await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(self.open(), home))
        elif opening is not None:
            await asyncio.shield(opening)

    async def _open(self) -> None:
        try:
            await self._connect()
        except BaseException:
            self._forget()
            raise

    async def close(self) -> None:
        """Finish what is under way and let go; the next use opens it again."""
        home, here = self.home, asyncio.get_running_loop()
        if home is None:
            return
        if home is not here and home.is_running():
            await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(self.close(), home))
            return
        if self._opening is not None and home is here:
            with suppress(Exception):  # whoever asked for the opening has been told
                await asyncio.shield(self._opening)
        await self._let_go(at_home=home is here)

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        await self.close()

    async def _connect(self) -> None:
        """Make `_operations`, on this loop."""
        raise NotImplementedError

    async def _let_go(self, *, at_home: bool) -> None:
        """End what is under way, forget, and close. Not `at_home`: its loop does not run any more."""
        raise NotImplementedError

    def _leave_behind(self) -> None:
        """Its loop does not run any more: what it has is forgotten."""
        self._forget()

    def _inherit(self) -> None:
        """In the child of a fork: what must not be closed is kept, because closing it would touch what is the parent's."""

    # From anywhere

    def at_home(self, verb: str, make: Callable[[], Coroutine[Any, Any, T]]) -> Coroutine[Any, Any, T]:
        """What an awaitable verb returns: `make()` on the loop where it is open. Without a running loop it raises at once."""
        check_loop(verb)
        return self._at_home(make)

    async def _at_home(self, make: Callable[[], Coroutine[Any, Any, T]]) -> T:
        here = asyncio.get_running_loop()
        if self.home is not here or self._operations is None:
            await self.open()
            home = self.home
            if home is not None and home is not here:
                return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(_made(make), home))
        return await make()

    def block(self, verb: str, make: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """What a verb behind `.sync` does."""
        return self.door.run(verb, make, self.home)


async def _made(make: Callable[[], Coroutine[Any, Any, T]]) -> T:
    return await make()


# A process that was forked


_homes: WeakSet[Home[Any]] = WeakSet()


def _forked() -> None:
    """What the child inherited is never closed there; it opens its own."""
    for each in _homes:
        if each.home is not None:
            each._inherit()
            each._guard = threading.Lock()
            each.door = Door()
            each._forget()


os.register_at_fork(after_in_child=_forked)
