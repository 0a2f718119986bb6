"""The migration that gives tenants their own keys: tasks that were stored under a key shared with others move into lanes of their tenant.

Before it, two tenants with the same order key, limit key or share stood in one lane. They keep their order: a task's age and number stay what they are. What
runs is counted against its tenant's own limit from here on; a rate begins its window anew.
"""

from __future__ import annotations

from msgspec.structs import replace

from taskmill.engines.rows import Meta, decode_meta, json_text
from taskmill.engines.sqlite import lanes
from taskmill.engines.sqlite.sql import Database, load
from taskmill.engines.sqlite.step import Step
from taskmill.task import RULES, SCOPE, scoped, scoped_limit

__all__ = ["scope"]

queries = load("scoping.sql")


def scope(db: Database, now: int) -> None:
    """Inside the transaction of its migration."""
    if db.execute(queries.any_tenant).fetchone() is None:
        return
    step = Step(db, RULES)
    step.begin(now)
    for seq, tenant, text in db.execute(queries.bodies).fetchall():
        db.execute(queries.set_meta, (json_text(_scoped_meta(tenant, decode_meta(text))), seq))
    stirred: set[int] = set()
    for lane, tenant in db.execute(queries.lanes).fetchall():
        target = _target(step, lane, tenant)
        if target != lane:
            _move(step, lane, target, tenant)
            stirred |= {lane, target}
    lanes.refresh(step, stirred, left=True)
    step.end()


def _own(tenant: str, key: str) -> str:
    return key if SCOPE in key else scoped(tenant, key)


def _own_limit(tenant: str, limit: str) -> str:
    return limit if SCOPE in limit else scoped_limit(tenant, limit)


def _own_share(tenant: str, share: str) -> str:
    return share if share in {"", tenant} else _own(tenant, share)


def _scoped_meta(tenant: str, meta: Meta) -> Meta:
    return replace(
        meta,
        limits=tuple(_own_limit(tenant, limit) for limit in meta.limits),
        share=_own_share(tenant, meta.share),
        order=meta.order and _own(tenant, meta.order),
    )


def _target(step: Step, number: int, tenant: str) -> int:
    lane = step.lane(number)
    limits = tuple(_own_limit(tenant, limit) for limit in lane.limits)
    return step.lane_id(lane.queue, _own_share(tenant, step.share_name(lane.share)), limits, lane.order_key and _own(tenant, lane.order_key), lane.type)


def _move(step: Step, lane: int, target: int, tenant: str) -> None:
    running = step.db.execute(queries.running, (lane, tenant)).fetchone()[0]
    for before, now in zip(step.lane(lane).limits, step.lane(target).limits, strict=True):
        for name, change in ((before, -running), (now, running)):
            limit = lanes.Limit(step, name.removeprefix(lanes.CAP))
            limit.running += change
            limit.save()
    step.db.execute(queries.move_ordered, (target, lane, tenant))
    step.db.execute(queries.move, (target, lane, tenant))
