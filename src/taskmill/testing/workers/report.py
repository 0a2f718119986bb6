"""What the kit found."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

__all__ = ["Broken", "Report", "Result"]


class Broken(Exception):
    """A promise of the protocol that the worker did not keep, in words for whoever writes the worker."""


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """One check or one rule."""

    name: str
    says: str
    passed: bool
    reason: str = ""
    """Why it did not pass."""
    seconds: float = 0.0


class Report(msgspec.Struct, frozen=True):
    """All results, checks first, then rules."""

    results: Sequence[Result]
    output: str = ""
    """The last that workers under test have written."""

    @property
    def passed(self) -> bool:
        return all(result.passed for result in self.results)

    @property
    def failed(self) -> set[str]:
        return {result.name for result in self.results if not result.passed}
