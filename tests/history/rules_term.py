"""Promise 8: one leader at a time, nothing accepted from one who was deposed, one task for each fire time."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from tests.history.events import FOREVER, Fire, Lead
from tests.history.index import Index, Violation, end, possible

__all__ = ["deposed_write", "fired_twice", "two_leaders"]


def fired_twice(index: Index) -> Iterator[Violation]:
    """8: one fire time of a schedule made two tasks."""
    tasks: dict[tuple[str, int], str] = {}
    for fire in index.of(Fire):
        if fire.answer == "applied" and tasks.setdefault((fire.schedule, fire.time), fire.task) != fire.task:
            yield Violation("fired_twice", fire.schedule, f"time {fire.time} made {tasks[fire.schedule, fire.time]} and {fire.task}")


def deposed_write(index: Index) -> Iterator[Violation]:
    """8: a write under a term was accepted after a higher term had been given."""
    deposed = _deposed(index)
    first_try: dict[tuple[str, int, str], int] = {}
    for write in sorted(index.led, key=lambda write: write.began):
        what = f"{write.schedule} {write.time}" if isinstance(write, Fire) else write.verb
        if possible(write):
            began = first_try.setdefault((write.role, write.term, what), write.began) if isinstance(write, Fire) else write.began
            if write.answer == "applied" and began > deposed.get((write.role, write.term), FOREVER):
                yield Violation("deposed_write", write.role, f"{what} accepted under term {write.term} after a higher one was given")


def _deposed(index: Index) -> dict[tuple[str, int], int]:
    """When each term that is named anywhere had surely been followed by a higher one."""
    given: dict[str, dict[int, int]] = defaultdict(dict)
    for lead in index.leads:
        if lead.answer == "applied":
            given[lead.role][lead.term] = min(given[lead.role].get(lead.term, FOREVER), end(lead))
    named: dict[str, set[int]] = defaultdict(set)
    for write in index.led:
        named[write.role].add(write.term)
    deposed: dict[tuple[str, int], int] = {}
    for role, terms in given.items():
        earliest = FOREVER
        for term in sorted(terms.keys() | named[role], reverse=True):
            deposed[role, term] = earliest
            earliest = min(earliest, terms.get(term, FOREVER))
    return deposed


def two_leaders(index: Index) -> Iterator[Violation]:
    """8: one term was given to two holders, a term given later is not higher, or it was given before the one before it was over."""
    roles: dict[str, list[Lead]] = defaultdict(list)
    for lead in index.leads:
        roles[lead.role].append(lead)
    for role, leads in roles.items():
        holders: dict[int, str] = {}
        for lead in leads:
            if lead.answer == "applied" and holders.setdefault(lead.term, lead.holder) != lead.holder:
                yield Violation("two_leaders", role, f"term {lead.term} given to {holders[lead.term]} and {lead.holder}")
        yield from _term_order(role, leads)
        yield from _overlaps(role, leads)


def _term_order(role: str, leads: list[Lead]) -> Iterator[Violation]:
    given = [lead for lead in leads if lead.answer == "applied"]
    ended = sorted(given, key=end)
    highest = position = 0
    for lead in given:
        while position < len(ended) and end(ended[position]) < lead.began:
            highest = max(highest, ended[position].term)
            position += 1
        if lead.term < highest:
            yield Violation("two_leaders", role, f"term {lead.term} given after {highest}")


def _overlaps(role: str, leads: list[Lead]) -> Iterator[Violation]:
    """By the store's clock: what it promised to one (`until`) it may not give to another (`since`) unless the first may have resigned."""
    resigned = {(lead.holder, lead.term) for lead in leads if lead.answer in ("resigned", "lost")}
    since: dict[int, int] = {}
    until: dict[int, int] = {}
    holder: dict[int, str] = {}
    for lead in leads:
        if lead.answer == "applied":
            since[lead.term] = min(since.get(lead.term, lead.since), lead.since)
            until[lead.term] = max(until.get(lead.term, 0), lead.until)
            holder[lead.term] = lead.holder
    promised, before = 0, ""
    for term in sorted(since):
        if since[term] < promised and holder[term] != before:
            yield Violation("two_leaders", role, f"term {term} of {holder[term]} began at {since[term]}, an earlier one was promised until {promised}")
        if (holder[term], term) not in resigned and until[term] > promised:
            promised, before = until[term], holder[term]
