"""When a failed task runs again, and when it is dead.

A policy is data: it is stored with the type and with the task, and every worker that reads it decides alike. `decide` is the one
decision, a pure function; its chance is an argument, so a test or a replay gets the same answer.

    delay before retry n (n = 1 after the first failure)
    exponential   base × factor^(n-1)    1 s, 2 s, 4 s … up to cap
    quadratic     base × n²              1 s, 4 s, 9 s … up to cap
    fixed         base                   no cap
    list          the n-th delay         the last one again when max_retries is larger

Jitter spreads the delay evenly over ±jitter of it, after the cap, so that tasks that failed together do not come back together.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Literal

import msgspec

from taskmill.clock import DAY, MINUTE, SECOND, DurationLike, duration, format_duration
from taskmill.errors import InvalidInput

__all__ = ["MAX_RETRIES", "Decision", "Retry", "Rule", "decide", "error_names"]

MAX_RETRIES = 1_000
_LONGEST_DELAY = 366 * DAY
_LARGEST_FACTOR = 1_000.0
_MOST_RULES = 100
_LONGEST_NAME = 255

Kind = Literal["exponential", "quadratic", "fixed", "list"]
Action = Literal["retry", "fail", "after"]


class Rule(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What one exception means: `error` is its name, bare or with its module, and covers its subclasses."""

    error: str
    action: Action = "retry"
    after: int = 0

    def __post_init__(self) -> None:
        _check_error_name(self.error)
        if self.action not in ("retry", "fail", "after"):
            raise _bad(f"{self.action!r} is no action", "rules.action", '"retry", "fail" or "after"')
        _check_delay(self.after, "rules.after")
        if self.after and self.action != "after":
            raise _bad(f"a delay has no meaning with the action {self.action!r}", "rules.after", 'use the action "after"')

    def covers(self, names: Sequence[str]) -> bool:
        """Whether the raised class, given by the names of its MRO, is meant."""
        if "." in self.error:
            return self.error in names
        return any(name.rpartition(".")[2] == self.error for name in names)


class Retry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A retry policy; make one with `exponential`, `quadratic`, `fixed` or `list`. Times are microseconds."""

    kind: Kind = "exponential"
    max_retries: int = 3
    base: int = SECOND
    factor: float = 2.0
    cap: int = 5 * MINUTE
    jitter: float = 0.1
    delays: tuple[int, ...] = ()
    rules: tuple[Rule, ...] = ()

    def __post_init__(self) -> None:
        if self.kind not in ("exponential", "quadratic", "fixed", "list"):
            raise _bad(f"{self.kind!r} is no retry policy", "kind", '"exponential", "quadratic", "fixed" or "list"')
        _check_count(self.max_retries)
        _check_real(self.factor, "factor", 1.0, _LARGEST_FACTOR)
        _check_real(self.jitter, "jitter", 0.0, 1.0)
        _check_delay(self.base, "base")
        _check_delay(self.cap, "cap")
        self._check_together()

    def _check_together(self) -> None:
        if self.kind in ("exponential", "quadratic") and self.cap < self.base:
            raise _bad(f"the cap {format_duration(self.cap)} is below the base {format_duration(self.base)}", "cap", "raise the cap or lower the base")
        if (self.kind == "list") != bool(self.delays):
            raise _bad("delays belong to the policy list, and it needs at least one", "delays", 'for example Retry.list(["1s", "10s", "1m"])')
        _check_length(self.delays)
        for delay in self.delays:
            _check_delay(delay, "delays")
        if len(self.rules) > _MOST_RULES:
            raise _bad(f"{len(self.rules)} rules are too many", "rules", f"at most {_MOST_RULES}; name a common base class instead")

    @classmethod
    def exponential(
        cls,
        max_retries: int = 3,
        base: DurationLike = "1s",
        factor: float = 2.0,
        cap: DurationLike = "5m",
        jitter: float = 0.1,
        rules: Iterable[Rule] = (),
    ) -> Retry:
        """Each delay is `factor` times the one before, up to `cap`. The default policy."""
        _check_real(factor, "factor", 1.0, _LARGEST_FACTOR)
        return cls(max_retries=max_retries, base=_delay(base, "base"), factor=float(factor), cap=_delay(cap, "cap"), jitter=_jitter(jitter), rules=tuple(rules))

    @classmethod
    def quadratic(cls, max_retries: int = 3, base: DurationLike = "1s", cap: DurationLike = "5m", jitter: float = 0.1, rules: Iterable[Rule] = ()) -> Retry:
        """The delay grows with the square of the failures, up to `cap`."""
        return cls(kind="quadratic", max_retries=max_retries, base=_delay(base, "base"), cap=_delay(cap, "cap"), jitter=_jitter(jitter), rules=tuple(rules))

    @classmethod
    def fixed(cls, delay: DurationLike = "1s", max_retries: int = 3, jitter: float = 0.1, rules: Iterable[Rule] = ()) -> Retry:
        """The same delay every time."""
        return cls(kind="fixed", max_retries=max_retries, base=_delay(delay, "delay"), jitter=_jitter(jitter), rules=tuple(rules))

    @classmethod
    def list(cls, delays: Iterable[DurationLike], max_retries: int | None = None, jitter: float = 0.1, rules: Iterable[Rule] = ()) -> Retry:
        """These delays in turn; as many retries as delays, unless `max_retries` says otherwise."""
        if isinstance(delays, str):
            raise _bad("one text is no list of delays", "delays", f"write [{delays!r}]")
        micros = tuple(_delay(delay, "delays") for delay in delays)
        _check_length(micros)
        count = len(micros) if max_retries is None else max_retries
        return cls(kind="list", max_retries=count, delays=micros, jitter=_jitter(jitter), rules=tuple(rules))

    def on(self, error: str | type[BaseException], action: Literal["retry", "fail"] = "retry", *, after: DurationLike | None = None) -> Retry:
        """The same policy with one rule more, asked after those it has: the first rule that covers an error decides."""
        name = error if isinstance(error, str) else _qualified(error)
        if after is None:
            rule = Rule(error=name, action=action)
        elif action == "retry":
            rule = Rule(error=name, action="after", after=_delay(after, "rules.after"))
        else:
            raise _bad('"fail" and a delay contradict each other', "rules.after", "leave one of them out")
        return msgspec.structs.replace(self, rules=(*self.rules, rule))

    def delay(self, failures: int, random: float) -> int:
        """How long to wait after this many failures; `random` from 0 to 1 picks the place inside the jitter."""
        return int(self._plain_delay(failures) * (1 + self.jitter * (2 * random - 1)))

    def _plain_delay(self, failures: int) -> int:
        if self.kind == "exponential":
            return _exponential(self.base, self.factor, self.cap, failures)
        if self.kind == "quadratic":
            return min(self.cap, self.base * failures * failures)
        if self.kind == "list":
            return self.delays[min(failures, len(self.delays)) - 1]
        return self.base

    def to_data(self) -> dict[str, object]:
        """The policy as plain JSON values, defaults left out."""
        data = _without_defaults(self)
        if self.delays:
            data["delays"] = [*self.delays]
        if self.rules:
            data["rules"] = [_without_defaults(rule) for rule in self.rules]
        return data

    @classmethod
    def from_data(cls, data: object) -> Retry:
        """The policy that `to_data` wrote, or a caller sent; refused with the field that is wrong."""
        try:
            return msgspec.convert(data, cls)
        except msgspec.ValidationError as error:
            raise _unreadable(error) from None

    def encode(self) -> str:
        """The policy as one short text: equal policies give equal texts, the default gives `{}`."""
        return msgspec.json.encode(self.to_data()).decode()

    @classmethod
    def decode(cls, text: str) -> Retry:
        """The policy of a text; the same text again costs a lookup, so a batch of tasks of one type decodes once."""
        return _decode(text)


class Decision(msgspec.Struct, frozen=True):
    """What becomes of a failed task: `after` is the delay in microseconds, or None when the task is dead; `reason` says why."""

    after: int | None
    reason: Literal["retry", "exhausted", "not_retried"]

    @property
    def dead(self) -> bool:
        return self.after is None


def decide(retry: Retry, failures: int, error_names: Sequence[str], random: float, *, after: int | None = None) -> Decision:
    """Retry or dead. `failures` includes this one; `error_names` is what the function of that name gives; `random` is from 0 to 1.

    `after` is a delay the handler itself asked for: it stands above every rule, but not above `max_retries`.
    """
    if failures < 1:
        raise _bad(f"{failures} failures: nothing has failed", "failures", "count this failure too")
    _check_real(random, "random", 0.0, 1.0)
    rule = next((rule for rule in retry.rules if rule.covers(error_names)), None) if after is None else None
    if rule is not None and rule.action == "fail":
        return Decision(None, "not_retried")
    if failures > retry.max_retries:
        return Decision(None, "exhausted")
    if after is not None:
        return Decision(after, "retry")
    if rule is not None and rule.action == "after":
        return Decision(rule.after, "retry")
    return Decision(retry.delay(failures, random), "retry")


def error_names(error: type[BaseException]) -> tuple[str, ...]:
    """The names that rules are matched against: the class and all it inherits from, each with its module."""
    return tuple(_qualified(parent) for parent in error.__mro__ if parent is not object)


def _without_defaults(value: Retry | Rule) -> dict[str, object]:
    """The fields that differ from their default. msgspec's own omission goes by identity, so equal policies could differ in their text."""
    pairs = ((field.name, getattr(value, field.name), field.default) for field in msgspec.structs.fields(value))
    return {name: content for name, content, default in pairs if content != default}


def _qualified(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


def _exponential(base: int, factor: float, cap: int, failures: int) -> int:
    try:
        return int(min(float(cap), base * factor ** (failures - 1)))
    except OverflowError:  # 1.8e308 is beyond every cap, unless the base is nothing
        return cap if base else 0


@lru_cache(maxsize=1_024)
def _decode(text: str) -> Retry:
    try:
        return msgspec.json.decode(text, type=Retry)
    except (msgspec.DecodeError, UnicodeEncodeError) as error:
        raise _unreadable(error) from None


def _unreadable(error: Exception) -> InvalidInput:
    path = re.search(r"`\$\.?([^`]*)`", str(error))
    return _bad(str(error), f"retry.{path[1]}" if path and path[1] else "retry", "a policy as Retry.encode writes it")


def _bad(message: str, field: str, hint: str) -> InvalidInput:
    return InvalidInput(message, code="invalid_retry", field=field, hint=hint)


def _delay(value: DurationLike, field: str) -> int:
    return duration(value, field=field)


def _jitter(value: float) -> float:
    _check_real(value, "jitter", 0.0, 1.0)
    return float(value)


def _check_count(value: object) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= MAX_RETRIES:
        raise _bad(f"{value!r} is no number of retries", "max_retries", f"a whole number from 0 to {MAX_RETRIES}")


def _check_length(delays: Sequence[int]) -> None:
    if len(delays) > MAX_RETRIES:
        raise _bad(f"{len(delays)} delays are too many", "delays", f"at most {MAX_RETRIES}")


def _check_real(value: object, field: str, low: float, high: float) -> None:
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not low <= value <= high:
        raise _bad(f"{value!r} cannot be used", field, f"a number from {low:g} to {high:g}")


def _check_delay(value: object, field: str) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= _LONGEST_DELAY:
        raise _bad(f"{value!r} microseconds cannot be used", field, f"from 0s to {format_duration(_LONGEST_DELAY)}")


def _check_error_name(name: object) -> None:
    if isinstance(name, str) and len(name) <= _LONGEST_NAME and all(part.isidentifier() or part == "<locals>" for part in name.split(".")):
        return
    raise _bad(f"{name!r} is no name of an exception", "rules.error", 'for example "ValueError" or "requests.exceptions.Timeout"')
