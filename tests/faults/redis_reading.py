"""A client of redis-py for whatever a URL of ours names: one server, the primary that Sentinels name, or a Cluster."""

from __future__ import annotations

from typing import Any

from redis import Redis, Sentinel
from redis.cluster import ClusterNode, RedisCluster

from taskmill.engines.redis.target import parse

__all__ = ["reader"]


def reader(url: str) -> Any:
    """To be closed by the caller."""
    target = parse(url)
    password = target.password.reveal() if target.password else None
    if target.cluster:
        nodes = [ClusterNode(host, port) for host, port in target.hosts]  # type: ignore[no-untyped-call]
        return RedisCluster(startup_nodes=nodes, password=password, socket_timeout=5.0)
    if target.sentinel:
        sentinel = Sentinel(list(target.hosts), socket_timeout=5.0)  # type: ignore[no-untyped-call]
        host, port = sentinel.discover_master(target.sentinel)  # type: ignore[no-untyped-call]
        return Redis(host=host, port=port, db=target.database, password=password)
    [(host, port)] = target.hosts
    return Redis(host=host, port=port, db=target.database, username=target.user, password=password)
