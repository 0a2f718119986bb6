"""What every verb of this engine stands on: the pool, the names of the schema, the clock, and the settings as they were last read."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from taskmill.clock import Clock, SystemClock
from taskmill.engine import Durability
from taskmill.engines.postgres.connecting import Pool
from taskmill.engines.postgres.errors import applied
from taskmill.engines.postgres.sql import Queries, load
from taskmill.engines.settings import Settings
from taskmill.task import Rules

__all__ = ["Store"]


class Store:
    """One schema of one database."""

    def __init__(self, pool: Pool, schema: str, *, clock: Clock | None, durability: Durability, lease: int, term: int, rules: Rules) -> None:
        self.pool = pool
        self.schema = schema
        self._durability = durability
        self.lease = lease
        self.term = term
        self._clock = None if isinstance(clock, SystemClock) else clock
        self.generation = -1
        self.settings = Settings((), rules)
        self.results_dropped = (0, 0)
        """Up to which completed task (when it ended, its number) results have been dropped."""
        self.looked_at: int | None = None
        """When this process last looked for waiting tasks that nothing would wake, …"""
        self.looked_up_to: UUID | None = None
        """… and where the next look goes on."""
        self._files: dict[str, Queries] = {}

    @property
    def durability(self) -> Durability:
        """How far a write has come when it is acknowledged: less far than asked for, where a server without a standby has taken over."""
        lacks = self._durability is Durability.REPLICATED and not self.pool.replicates
        return Durability.FSYNC if lacks else self._durability

    def load(self, file: str) -> Queries:
        """The statements of a file, with this schema's name in them; read once."""
        if file not in self._files:
            self._files[file] = load(file, self.schema)
        return self._files[file]

    def now(self) -> int | None:
        """The moment of a step: None, the server's own clock, unless a test moves time."""
        return None if self._clock is None else self._clock.now()

    def monotonic(self) -> int | None:
        """What beats and terms are judged by; the server has no other clock than its own, so None again (see recover)."""
        return None if self._clock is None else self._clock.monotonic()

    async def read_settings(self, db: Any = None) -> Settings:
        """The settings in force, read anew; on the user's connection when there is one."""
        rows = await (db or self.pool).fetch(self.load("store.sql").settings)
        self.generation = rows[0]["generation"]
        self.settings = self.settings.again((row["kind"], row["name"], row["value"]) for row in rows if row["kind"] is not None)
        return self.settings

    async def settle(self, *, wait: bool = True) -> bool:
        """What steps have left in the inboxes is applied, and what time has decided. True: there was more than a few bounded pieces, or, without `wait`,
        another is doing it."""
        with applied():
            return bool(await self.pool.fetchval(self.load("store.sql").settle, self.now(), wait))
