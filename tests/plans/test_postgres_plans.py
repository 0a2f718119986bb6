"""How PostgreSQL finds rows among millions: by these indexes and no more rows than a step needs, whatever the planner believes of the tables.

The plans are those that the steps really go by, inside their functions too.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from urllib.parse import urlsplit

import pytest

from taskmill.clock import DAY
from taskmill.engine import EVERYTHING, Claim, Ending, Filter, Joining, Outcome, Retention, Room, Term
from taskmill.engines.postgres import claim, finish, inspect, recover
from taskmill.engines.postgres.horizon import Horizon
from taskmill.engines.postgres.listing import WINDOW
from taskmill.engines.postgres.store import Store
from taskmill.task import State, Task, TypeSettings, new_id
from tests.engines.postgres.leases import opened_store
from tests.plans import million
from tests.plans.explained import Plans, explaining
from tests.plans.million import BELIEFS, MILLION, id_of
from tests.servers.existing import Server

BATCH = 100
GUARDED = ("task", "body", "ended", "lane", "edge")
PROBES = {"store", "queue", "share", "workers", "tally_mark", "late_edge"}
"""Tables of one row, or of as many as there are queues and workers, and what is left in an inbox: to read them from end to end is no loss."""


class Worker:
    """One that claims in this test only."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.id = new_id()
        self._request = 0

    async def join(self) -> None:
        types = {"work": TypeSettings(), "rare": TypeSettings()}
        await recover.join(self.store, Joining(worker=self.id, queues=("default", "later", "lanes"), types=types, lease=DAY))

    async def claim(self, queue: str, n: int = BATCH) -> Claim:
        self._request += 1
        return await claim.claim(self.store, self.id, self._request, [queue], Room(n))

    def outcomes(self, claimed: Claim, ending: Ending = Ending.COMPLETED) -> list[Outcome]:
        return [Outcome(task=task.id, worker=self.id, token=task.token, ending=ending) for task in claimed.tasks]


@pytest.fixture(scope="module")
def url(postgres: Server) -> Iterator[str]:
    """One store for all tests: none of them takes more than a few hundred of its tasks."""
    url = postgres.databases.give()
    try:
        million.fill(url)
        yield url
    finally:
        postgres.databases.drop(urlsplit(url).path.removeprefix("/"))


@pytest.fixture(scope="module", params=BELIEFS)
def belief(request: pytest.FixtureRequest, url: str) -> str:
    million.believe(url, request.param)
    return str(request.param)


@pytest.fixture
async def store(url: str, belief: str) -> AsyncIterator[Store]:
    async with opened_store(url) as store:
        yield store


@pytest.fixture
async def worker(store: Store) -> Worker:
    worker = Worker(store)
    await worker.join()
    return worker


def judge(plans: Plans, most: int, **indexes: set[str]) -> None:
    """These tables are read by these indexes, no others of the large ones at all, and all of them together not more than `most` rows."""
    reads = plans.reads()
    assert {table: plans.of(table) for table in GUARDED if plans.of(table)} == indexes, reads
    assert [table for table, index in reads if index is None and table not in PROBES] == []
    assert sum(rows for (table, _), rows in reads.items() if table in GUARDED) <= most, reads
    assert plans.compared_in_vain() <= most


async def make_due(store: Store, kind: str, ids: Sequence[int]) -> None:
    """The time of these has come."""
    await store.pool.fetch("UPDATE taskmill.task SET ready_at = taskmill.moment(NULL) - 1000 WHERE id = ANY ($1::uuid[])", [id_of(kind, n) for n in ids])


def some(belief: str, n: int) -> range:
    """Numbers that no other belief's test has had; in lanes where nothing is ready yet."""
    first = million.OPEN + 1_000 * list(BELIEFS).index(belief)
    return range(first, first + n)


# Claim


async def test_a_claim_reads_what_it_takes_of_a_million_that_wait(store: Store, worker: Worker) -> None:
    async with explaining(store.pool) as plans:
        assert len((await worker.claim("default")).tasks) == BATCH
    judge(plans, 4 * BATCH, task={"task_plain", "task_pkey", "task_due"}, body={"body_pkey"})


async def test_delayed_tasks_and_retries_of_a_plain_line_are_claimed_when_they_are_due(store: Store, worker: Worker, belief: str) -> None:
    """And the next one's time is found among a hundred thousand."""
    await make_due(store, "later", some(belief, BATCH // 2))
    async with explaining(store.pool) as plans:
        found = await worker.claim("later")
        nothing = await worker.claim("later")
    assert len(found.tasks) == BATCH // 2
    assert nothing.tasks == ()
    assert nothing.next_at is not None
    judge(plans, 4 * BATCH, task={"task_plain", "task_pkey", "task_due"}, body={"body_pkey"})


async def test_what_is_due_in_lanes_becomes_ready(store: Store, belief: str) -> None:
    await make_due(store, "asleep", some(belief, BATCH))
    async with explaining(store.pool) as plans:
        await store.settle()
    judge(plans, 20 * BATCH, task={"task_due", "task_pkey", "task_lane"}, lane={"lane_pkey", "lane_open"})


async def test_a_claim_looks_at_open_lanes_only(store: Store, worker: Worker) -> None:
    """Nineteen of twenty lanes sleep, and a million tasks stand behind a closed limit."""
    async with explaining(store.pool) as plans:
        assert len((await worker.claim("lanes")).tasks) == BATCH
    judge(plans, 40 * BATCH, task={"task_lane", "task_plain", "task_pkey", "task_due"}, body={"body_pkey"}, lane={"lane_open", "lane_pkey", "lane_needs"})


# Finish


async def test_a_finish_touches_its_own_rows(store: Store, worker: Worker) -> None:
    """Also a repeated one, and one whose leases are not current."""
    held = worker.outcomes(await worker.claim("default"))
    async with explaining(store.pool) as plans:
        assert (await finish.finish(store, held)).refused == ()
        assert (await finish.finish(store, held)).refused == ()
        stale = [Outcome(task=outcome.task, worker=worker.id, token=1, ending=Ending.COMPLETED) for outcome in held]
        assert len((await finish.finish(store, stale)).refused) == BATCH
    judge(plans, 20 * BATCH, task={"task_pkey", "task_due"}, body={"body_pkey"}, ended={"ended_pkey"}, edge={"edge_child"})


async def test_every_other_ending_touches_its_own_rows(store: Store, worker: Worker) -> None:
    endings = [ending for ending in Ending if ending is not Ending.COMPLETED]
    batches = [worker.outcomes(await worker.claim("default", 10), ending) for ending in endings]
    async with explaining(store.pool) as plans:
        for batch in batches:
            assert (await finish.finish(store, batch)).refused == ()
    judge(plans, 30 * 10 * len(endings), task={"task_pkey", "task_due"}, body={"body_pkey"}, edge={"edge_child"})


# Upkeep


async def test_recovery_reads_the_leases_of_the_dead_and_what_has_expired(store: Store) -> None:
    """The others are not looked at. Of one worker all that it held: as much as it had slots."""
    await recover.free_stuck(store)  # not again within a minute
    await store.pool.fetch("UPDATE taskmill.store SET mark_at = taskmill.moment(NULL), fair_since = 0")
    async with explaining(store.pool) as plans:
        assert (await recover.recover_lost(store, BATCH)).moved == 2 * BATCH
    judge(plans, 1_000 + 20 * BATCH, task={"task_held", "task_pkey", "task_due"}, body={"body_pkey", "body_seq"})
    assert plans.of("expiry") == {"expiry_pkey"}


async def test_a_look_for_stuck_tasks_reads_a_slice_of_what_waits(store: Store) -> None:
    async with explaining(store.pool) as plans:
        assert await recover.free_stuck(store) == 0
    judge(plans, 4 * recover.STUCK_SLICE, task={"task_waits", "task_pkey"}, edge={"edge_order"}, ended={"ended_pkey"})


async def test_a_beat_reads_the_leases_of_its_worker(store: Store, worker: Worker) -> None:
    held = await worker.claim("default")
    async with explaining(store.pool) as plans:
        assert (await recover.heartbeat(store, worker.id, 1, [task.token for task in held.tasks])).known
    judge(plans, 2 * BATCH, task={"task_held"})


async def leading(store: Store) -> Term:
    term = await recover.lead(store, "pruning", "me")
    assert term is not None
    return term


async def test_pruning_reads_what_it_removes(store: Store) -> None:
    """Half of the million is beyond its retention."""
    term = await leading(store)
    async with explaining(store.pool) as plans:
        assert (await recover.prune(store, BATCH, term, Retention())).moved == BATCH
    judge(plans, 20 * BATCH, body={"body_pkey"}, ended={"ended_at", "ended_pkey"}, edge={"edge_child", "edge_order"}, task={"task_pkey"})


async def test_a_round_that_finds_nothing_to_prune_looks_at_each_lane_once(store: Store) -> None:
    term = await leading(store)
    kept = Retention(completed=90 * DAY, dead=90 * DAY, cancelled=90 * DAY)
    async with explaining(store.pool) as plans:
        assert (await recover.prune(store, BATCH, term, kept)).moved == 0
    assert plans.of("ended") <= {"ended_at", "ended_pkey"}
    assert plans.of("task") <= {"task_asleep", "task_lane"}
    assert max(plans.reads().values()) <= 3 * million.LANES
    assert plans.compared_in_vain() <= 3 * million.LANES


# Inspection


REAL = pytest.mark.parametrize("belief", [belief for belief in BELIEFS if belief != "analysed when empty"], indirect=True)
"""What ended stays for weeks: its tables are analysed as they are, or never were. Nobody's hot path has to bear more."""

FAILED = {"body": {"body_seq", "body_pkey"}, "task": {"task_pkey"}, "ended": {"ended_failed", "ended_pkey"}}
FILTERS: dict[str, tuple[Filter, dict[str, set[str]]]] = {
    "everything": (EVERYTHING, {"body": {"body_seq"}}),
    "type": (Filter(types=frozenset({"rare"})), {"body": {"body_type"}}),
    "types": (Filter(types=frozenset({"rare", "work"})), {"body": {"body_type"}}),
    "tenant": (Filter(tenant="acme"), {"body": {"body_tenant"}}),
    "dead": (Filter(states=frozenset({State.DEAD})), FAILED),
    "cancelled": (Filter(states=frozenset({State.CANCELLED})), FAILED),
}


@REAL
@pytest.mark.parametrize("name", FILTERS)
async def test_a_page_of_a_list_is_read_in_its_order(store: Store, name: str) -> None:
    """Seven times: after five a statement may get a plan for whatever is asked."""
    which, indexes = FILTERS[name]
    async with explaining(store.pool) as plans:
        for _ in range(7):
            ids, _ = await inspect.matching(store, which, None, BATCH)
            assert len(ids) == BATCH
    judge(plans, 7 * (3 * WINDOW + 4) * BATCH if which.states else 7 * 2 * BATCH, **indexes)


@REAL
async def test_a_tag_that_few_have_is_found_by_its_index(store: Store, belief: str) -> None:
    """If the planner knows that few have it; otherwise it reads from the newest on."""
    async with explaining(store.pool) as plans:
        ids, _ = await inspect.matching(store, Filter(tags={"customer": "nobody"}), None, BATCH)
    assert ids == []
    assert plans.of("body") == {"body_seq" if belief == "never analysed" else "body_tags"}


async def test_records_are_read_by_their_ids(store: Store) -> None:
    ids = [id_of(kind, n) for kind in ("plain", "closed", "ended") for n in range(MILLION - BATCH, MILLION)]
    async with explaining(store.pool) as plans:
        for _ in range(7):
            assert all(isinstance(task, Task) for task in await inspect.get(store, ids))
    judge(plans, 7 * 10 * BATCH, body={"body_pkey"}, task={"task_pkey"}, ended={"ended_pkey"})


async def test_those_who_wait_ask_by_ids(store: Store) -> None:
    ids = [id_of(kind, n) for kind in ("plain", "ended") for n in range(MILLION - 10, MILLION)]
    async with explaining(store.pool) as plans:
        for _ in range(7):
            assert len(await inspect.ended(store, ids)) == 20
    judge(plans, 7 * 5 * BATCH, task={"task_pkey"}, ended={"ended_pkey"})


@REAL
async def test_counts_read_what_lives_and_what_failed_and_nothing_else(store: Store) -> None:
    """What has completed was counted when the mark went past it."""
    bodies = Horizon(store, "body", "seq")
    await inspect.counts(store, bodies)
    async with explaining(store.pool) as plans:
        counted = await inspect.counts(store, bodies)
    assert sum(count.tasks for count in counted if count.state is State.COMPLETED) > 0.8 * MILLION
    assert plans.of("ended") == {"ended_failed"}
    assert plans.of("body") == {"body_seq"}
    assert plans.reads()["body", "body_seq"] <= 0.11 * MILLION
