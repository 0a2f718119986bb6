"""The settings that steps obey, as the engines of SQL read them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Self

import msgspec

from taskmill.errors import InvalidInput
from taskmill.task import (
    RULES,
    SCOPE,
    SHARE_LENGTH,
    NewTask,
    Resolved,
    Rules,
    TypeSettings,
    check_braces,
    check_key,
    check_name,
    check_range,
    check_settings,
    definition_of,
    resolve,
)

__all__ = ["LimitDefinition", "QueueSettings", "Settings", "check_item"]


class LimitDefinition(msgspec.Struct, frozen=True):
    """A limit's numbers: at most `rate` starts in any `window`, at most `cap` at once."""

    rate: int | None = None
    window: int = 1_000_000
    cap: int | None = None


class QueueSettings(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How a queue shares itself out."""

    weights: dict[str, int] = {}
    """Turns of a share, by its name: one of weight 3 has three turns while another has one."""
    priorities: tuple[int, int, int, int] | None = None
    """Turns of low, normal, high and critical tasks; left out: the highest always goes first."""
    fair: str | None = None
    """What types of this queue take turns by where they do not say it themselves: `tenant`, or a field of the payload in braces. It holds for submits
    from then on."""
    partitions: int = 1
    """Over how many shards of a Redis Cluster it is spread; it may grow. Elsewhere it means nothing."""

    def weight(self, share: str) -> int:
        """By the share's whole name; a share of a tenant (`scoped`) has its tenant's weight."""
        return max(1, self.weights.get(share) or self.weights.get(share.partition(SCOPE)[0], 1))


class Settings:
    """The settings in force, as the hot path needs them."""

    def __init__(self, rows: Iterable[tuple[str, str, bytes]], rules: Rules = RULES) -> None:
        self.rules = rules
        self.types: dict[str, TypeSettings] = {}
        self.limits: dict[str, LimitDefinition] = {}
        self.queues: dict[str, QueueSettings] = {}
        self.paused_queues: set[str] = set()
        self.paused_types: set[str] = set()
        self.outbox: set[str] = set()
        for kind, name, value in rows:
            self._read(kind, name, value)
        self._share_by_queue()

    def again(self, rows: Iterable[tuple[str, str, bytes]]) -> Self:
        """The settings that the store has by now, under the same rules."""
        return type(self)(rows, self.rules)

    def resolve(self, new: NewTask) -> Resolved:
        """A new task with every setting known."""
        return resolve(new, self.types.get(new.type), self.rules)

    def _read(self, kind: str, name: str, value: bytes) -> None:
        match kind:
            case "type":
                self.types[name] = msgspec.json.decode(value, type=TypeSettings)
            case "limit":
                self.limits[name] = msgspec.json.decode(value, type=LimitDefinition)
            case "queue":
                self.queues[name] = msgspec.json.decode(value, type=QueueSettings)
            case "pause":
                what, _, which = name.partition(":")
                (self.paused_queues if what == "queue" else self.paused_types).add(which)
            case "outbox":
                self.outbox.add(name)

    def _share_by_queue(self) -> None:
        """A type that does not say what its tasks take turns by takes turns as its queue says."""
        for name, settings in self.types.items():
            if settings.fair is None and settings.queue in self.queues:
                self.types[name] = msgspec.structs.replace(settings, fair=self.queues[settings.queue].fair)

    def limit(self, name: str) -> LimitDefinition:
        """The numbers of a limit; without a definition it counts but never closes, so what was charged can be given back."""
        return self.limits.get(definition_of(name), _UNLIMITED)


_UNLIMITED = LimitDefinition()


def check_item(kind: str, name: str, value: bytes) -> None:
    """A setting that no step could obey is refused."""
    check_name(kind, "kind")
    check_key(name, "name")
    try:
        match kind:
            case "type":
                check_settings(msgspec.json.decode(value, type=TypeSettings), name)
            case "limit":
                check_name(name, "name")
                _check_limit(msgspec.json.decode(value, type=LimitDefinition))
            case "queue":
                check_name(name, "name")
                _check_queue(msgspec.json.decode(value, type=QueueSettings))
            case "pause":
                if not name.startswith(("queue:", "type:", "schedule:")):
                    raise InvalidInput(f"{name!r} cannot be paused", field="name", hint="queue:NAME, type:NAME or schedule:NAME")
            case _:
                msgspec.json.decode(value)
    except msgspec.DecodeError as error:
        raise InvalidInput(f"the value of {kind} {name!r} is wrong: {error}", code="invalid_setting", field="value") from None


def _check_limit(definition: LimitDefinition) -> None:
    if definition.rate is not None:
        check_range(definition.rate, "rate", 1, 1 << 40)
        check_range(definition.window, "window", 1_000, 366 * 86_400_000_000)
    if definition.cap is not None:
        check_range(definition.cap, "cap", 0, 1 << 30)
    if definition.rate is None and definition.cap is None:
        raise InvalidInput("the limit limits nothing", field="rate", hint="give a rate with its window, a cap, or both")


def _check_queue(settings: QueueSettings) -> None:
    for share, weight in settings.weights.items():
        if share:
            check_key(share, "weights", length=128)
        check_range(weight, f"weights.{share}", 1, 1_000)
    for weight in settings.priorities or ():
        check_range(weight, "priorities", 1, 1_000)
    if settings.fair is not None:
        check_braces(check_key(settings.fair, "fair", length=SHARE_LENGTH), "fair")
    check_range(settings.partitions, "partitions", 1, 64)
