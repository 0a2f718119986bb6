"""The last events of the stream, for listeners that come back: what followed the last event that they heard, if all of it is still here.

An event has its place in the stream as its id, `<epoch>-<number>`. Every server process, and every beginning of the stream in it, is another epoch: a place of
another one says nothing here. What the store told is kept as it was told, also what nobody listens to now, since whoever comes back may have; it is put into
words when somebody asks for it. While nobody listens there is no stream, and nothing is kept.
"""

from __future__ import annotations

import secrets
from collections import deque
from collections.abc import Iterator

from taskmill.events import Event
from taskmill.server.news import News, news_of

__all__ = ["MOST_KEPT", "Ring"]

MOST_KEPT = 4_096
"""Events of the store, and of this server, that are kept."""


class Ring:
    """The places of one server's events, and the last of them."""

    def __init__(self, most: int = MOST_KEPT) -> None:
        self._kept: deque[_Kept] = deque(maxlen=most)
        self._epoch = ""
        self.number = 0

    def begin(self) -> None:
        """The stream begins: what was before is not heard of any more."""
        self._kept.clear()
        self._epoch, self.number = secrets.token_hex(6), 0

    def place(self, number: int | None = None) -> str:
        """Of the last event, unless a number is given."""
        return f"{self._epoch}-{self.number if number is None else number}"

    def add(self, told: Event | News, news: int = 1) -> int:
        """It takes the next places, one for each of its news; answers the first of them."""
        first = self.number + 1
        self.number += news
        if news:
            self._kept.append(_Kept(first, told))
        return first

    def after(self, place: str) -> Iterator[News] | None:
        """What followed this place, numbered; None when that is not known here, or not all of it any more."""
        epoch, _, digits = place.partition("-")
        if epoch != self._epoch or not (digits.isascii() and digits.isdecimal() and len(digits) < 20) or int(digits) > self.number:
            return None
        number = int(digits)
        if number < self.number and self._kept[0].first > number + 1:
            return None
        return (news for kept in self._since(number) for each, news in kept.news(self) if each > number)

    def _since(self, number: int) -> list[_Kept]:
        """From the one on that has, or follows, this number."""
        found: list[_Kept] = []
        for kept in reversed(self._kept):
            if number == self.number:
                break
            found.append(kept)
            if kept.first <= number + 1:
                break
        return found[::-1]


class _Kept:
    __slots__ = ("_news", "first", "told")

    def __init__(self, first: int, told: Event | News) -> None:
        self.first = first
        self.told = told
        self._news: list[tuple[int, News]] | None = None

    def news(self, ring: Ring) -> list[tuple[int, News]]:
        """Put into words once, for however many come back."""
        if self._news is None:
            told = [self.told] if isinstance(self.told, News) else news_of(self.told)
            self._news = [(number, news.numbered(ring.place(number))) for number, news in enumerate(told, self.first)]
        return self._news
