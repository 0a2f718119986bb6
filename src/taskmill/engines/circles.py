"""Tasks that wait for each other, in time that grows with tasks and edges."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Collection, Mapping

__all__ = ["circles", "on_circles"]


def circles(waits: Mapping[str, Collection[str]]) -> set[str]:
    """Those who can never run: they wait in a circle, or for one who does. Who is waited for and waits for none of these is free."""
    waiters: defaultdict[str, list[str]] = defaultdict(list)
    open_edges: dict[str, int] = {}
    for task, targets in waits.items():
        known = {target for target in targets if target in waits}
        open_edges[task] = len(known)
        for target in known:
            waiters[target].append(task)
    free = deque(task for task, edges in open_edges.items() if edges == 0)
    while free:
        task = free.popleft()
        del open_edges[task]
        for waiter in waiters[task]:
            open_edges[waiter] -= 1
            if open_edges[waiter] == 0:
                free.append(waiter)
    return set(open_edges)


def on_circles(waits: Mapping[str, Collection[str]]) -> set[str]:
    """Those who stand on a circle or between two, without those who only wait for one of them."""
    stuck = circles(waits)
    waiters: defaultdict[str, set[str]] = defaultdict(set)
    for task in stuck:
        for target in stuck.intersection(waits[task]):
            waiters[target].add(task)
    return circles({task: waiters[task] for task in stuck})
