"""What a run measured, as a table for people and as JSON for programs."""

from __future__ import annotations

import json
import math
import os
import platform
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import apsw
from rich.console import Console
from rich.table import Table

from bench.stores import Stores, Typical

__all__ = ["MEMORY", "Figure", "Plan", "at_most", "each", "file_system", "information", "over_best", "percentile", "rates", "show", "summary", "write_json"]

MEMORY = frozenset({"tmpfs", "ramfs", "devtmpfs"})
"""File systems on which a commit reaches no disk: nothing measured there is judged."""


@dataclass(frozen=True)
class Figure:
    """One line of the table. `target` with `bound` says what it should be; without one it is information."""

    section: str
    name: str
    value: float
    unit: str
    bound: str = ""
    target: float | None = None
    sides: Mapping[str, float] = field(default_factory=dict)
    how: str = ""
    rounds: Sequence[float] = ()
    """The same of every round by itself: how far to trust the value."""

    @property
    def met(self) -> bool | None:
        match self.bound:
            case ">=":
                return self.target is not None and self.value >= self.target
            case "<=":
                return self.target is not None and self.value <= self.target
            case "<":
                return self.target is not None and self.value < self.target
        return None


def rates(section: str, name: str, target: float | None, sides: Mapping[str, Sequence[float]], how: str = "", *, typical: Typical = max) -> Figure:
    """What is typical of the first side's rounds over that of the second's, which should not fall below the target."""
    best = {side: typical(values) for side, values in sides.items()}
    rounds = [first / second for first, second in zip(*sides.values(), strict=True)]
    return Figure(section, name, _over(best), "x", ">=" if target is not None else "", target, best, how, rounds)


def over_best(
    section: str, name: str, target: float | None, own: Sequence[float], others: Mapping[str, Sequence[float]], how: str = "", *, typical: Typical = max
) -> Figure:
    """Against whichever of the others is fastest; the others' name says which it was."""
    best = max(others, key=lambda other: typical(others[other]))
    return rates(section, name, target, {"own": own, best: others[best]}, how, typical=typical)


def each(section: str, name: str, found: Sequence[float], how: str = "", *, typical: Typical = max) -> Figure:
    """One side by itself: what was divided by what."""
    return Figure(section, name, typical(found), "/s", how=how, rounds=found)


def at_most(section: str, name: str, target: float, sides: Mapping[str, float], how: str = "") -> Figure:
    return Figure(section, name, _over(sides), "x", "<=", target, sides, how)


def information(section: str, name: str, sides: Mapping[str, float], how: str = "") -> Figure:
    return Figure(section, name, _over(sides), "x", sides=sides, how=how)


def _over(sides: Mapping[str, float]) -> float:
    first, second = sides.values()
    return first / second if second else math.inf


def percentile(values: Sequence[float], part: float) -> float:
    """The value that this part of all do not exceed."""
    return sorted(values)[min(len(values) - 1, int(len(values) * part))]


@dataclass(frozen=True)
class Plan:
    """How much of everything, and where."""

    stores: Stores
    directory: Path
    rounds: int
    scale: float
    seconds: float
    """Of every measurement that is bounded by time."""
    systems: tuple[str, ...] = ()
    """Words of which one stands in the name of every system that is compared; without any, all are."""
    hold: float | None = None
    """Seconds for which a snapshot is held, and the tasks a second meanwhile; without them, what the section says."""
    load: int | None = None
    began: float = field(default_factory=time.monotonic)

    def count(self, full: int, least: int = 1_000) -> int:
        return max(least, int(full * self.scale))

    def say(self, text: str) -> None:
        print(f"[{time.monotonic() - self.began:6.1f} s] {text}", file=sys.stderr, flush=True)


def file_system(directory: Path) -> str:
    """The type of the mount that holds a directory; "unknown" where the system does not tell."""
    try:
        lines = Path("/proc/self/mounts").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return "unknown"
    where = directory.resolve()
    best, kind = "", "unknown"
    for line in lines:
        _, mount, type_name, *_ = line.split(" ")
        mount = mount.replace("\\040", " ")
        if where.is_relative_to(mount) and len(mount) >= len(best):
            best, kind = mount, type_name
    return kind


def show(figures: Sequence[Figure], plan: Plan) -> None:
    console = Console(width=None if sys.stdout.isatty() else 170, highlight=False)
    kind = file_system(plan.directory)
    table = Table(title=f"Ratios of one run: {plan.stores.engine}", caption=_caption(plan, kind), title_justify="left", caption_justify="left")
    for heading, justify in (
        ("section", "left"),
        ("measure", "left"),
        ("result", "right"),
        ("rounds", "right"),
        ("target", "right"),
        ("", "left"),
        ("sides", "left"),
    ):
        table.add_column(heading, justify="right" if justify == "right" else "left", overflow="fold")
    last = ""
    for figure in figures:
        if last and figure.section != last:
            table.add_section()
        table.add_row(
            "" if figure.section == last else figure.section,
            figure.name,
            _result(figure),
            _rounds(figure),
            _target(figure),
            _verdict(figure, kind),
            _sides(figure),
        )
        last = figure.section
    console.print(table)
    console.print(summary(figures, kind))


def _caption(plan: Plan, kind: str) -> str:
    rate = "the best" if plan.stores.engine == "sqlite" else "the median"
    return (
        f"store on {kind}, {plan.stores.durable} unless a line says otherwise; both sides of a ratio take turns, "
        f"{plan.rounds} round{'s' if plan.rounds > 1 else ''}, scale {plan.scale:g}; a rate is {rate} of its rounds, a duration what its line says. "
        f"Python {platform.python_version()}, {plan.stores.release}"
    )


def _number(value: float, unit: str) -> str:
    if unit == "x":
        return f"{value:.2f}" if value < 100 else f"{value:,.0f}"
    return f"{value:,.0f} {unit}" if value >= 1_000 else f"{value:.1f} {unit}"


def _result(figure: Figure) -> str:
    return _number(figure.value, figure.unit)


def _rounds(figure: Figure) -> str:
    return "" if len(figure.rounds) < 2 else f"{_number(min(figure.rounds), 'x')}–{_number(max(figure.rounds), 'x')}"


def _target(figure: Figure) -> str:
    return "" if figure.target is None else f"{figure.bound} {figure.target:g}{'' if figure.unit == 'x' else f' {figure.unit}'}"


def _verdict(figure: Figure, kind: str) -> str:
    if figure.met is None or kind in MEMORY:
        return "-"
    return "met" if figure.met else "MISSED"


def _sides(figure: Figure) -> str:
    sides = ", ".join(f"{name} {value:,.0f}" if value >= 100 else f"{name} {value:.2f}" for name, value in figure.sides.items())
    return f"{sides}; {figure.how}" if sides and figure.how else sides or figure.how


def summary(figures: Sequence[Figure], kind: str) -> str:
    judged = [figure for figure in figures if figure.met is not None]
    if kind in MEMORY:
        return f"Nothing is judged: {kind} keeps the store in memory. Name a directory on a disk with --dir or BENCH_DIR."
    missed = [figure.name for figure in judged if not figure.met]
    return f"{len(judged) - len(missed)} of {len(judged)} targets met." + (f" Missed: {'; '.join(missed)}." if missed else "")


def write_json(file: Path, found: Sequence[tuple[Plan, Sequence[Figure]]]) -> None:
    """Of one run, which may have been over several engines, one after the other."""
    plan = found[0][0]
    kind = file_system(plan.directory)
    document: dict[str, Any] = {
        "machine": {
            "cpus": os.cpu_count(),
            "system": platform.system(),
            "python": platform.python_version(),
            "sqlite": apsw.sqlite_lib_version(),
            "apsw": apsw.apsw_version(),
            "file_system": kind,
        },
        "engines": {plan.stores.engine: {"release": plan.stores.release, "durable": plan.stores.durable} for plan, _ in found},
        "plan": {"rounds": plan.rounds, "scale": plan.scale, "seconds": plan.seconds},
        "judged": kind not in MEMORY,
        "figures": [
            {"engine": plan.stores.engine, **asdict(figure), "met": None if kind in MEMORY else figure.met} for plan, figures in found for figure in figures
        ],
    }
    file.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
