"""The command line that all benchmarks share: which sections, how much of everything, where, and the table at the end."""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path

from bench.report import Figure, Plan, show, write_json
from bench.stores import Missing, made

__all__ = ["Section", "run"]

Section = Callable[[Plan], Awaitable[list[Figure]]]

AFTERWARDS = "The exit status says whether the run came to its end, not whether targets were met."


def run(program: str, summary: str, epilog: str, sections: Mapping[str, Mapping[str, Section]], arguments: Sequence[str] | None, *, every: bool = False) -> int:
    """Sections by engine and name. `every`: without a choice, all engines that can be had here. Exit code: 0 came to its end, 2 asked for what it cannot do,
    130 stopped."""
    options = _parser(program, summary, epilog, sections, every).parse_args(arguments)
    directory = Path(options.dir)
    if not directory.is_dir():
        print(f"bench: {directory} is not a directory; make it first, or name another with --dir", file=sys.stderr)
        return 2
    chosen = {
        engine: [section for name, section in sections[engine].items() if name in (options.only or sections[engine])]
        for engine in options.engine or (sections if every else tuple(sections)[:1])
    }
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # servers and workers that were started must not be left behind
    found: list[tuple[Plan, list[Figure]]] = []
    for engine, run_these in chosen.items():
        try:
            found += [_measured(engine, run_these, directory, options)] if run_these else []
        except KeyboardInterrupt:
            print("bench: stopped", file=sys.stderr)
            return 130
        except Missing as error:
            print(f"bench: {engine} is left out: {error}", file=sys.stderr)
            if options.engine:
                return 2
    if options.json is not None and found:
        write_json(options.json, found)
    return 0


def _measured(engine: str, sections: Sequence[Section], directory: Path, options: argparse.Namespace) -> tuple[Plan, list[Figure]]:
    scale = options.scale if options.scale is not None else 0.1 if options.quick else 1.0
    rounds = options.rounds if options.rounds is not None else 1 if options.quick else 3
    with made(engine, directory) as stores:
        plan = Plan(stores, directory, rounds, scale, max(0.2, 4.0 * min(1.0, scale * 5)), tuple(options.system or ()), options.hold, options.load)
        figures = asyncio.run(_all(plan, sections))
        show(figures, plan)
    return plan, figures


async def _all(plan: Plan, sections: Sequence[Section]) -> list[Figure]:
    return [figure for section in sections for figure in await section(plan)]


def _parser(program: str, summary: str, epilog: str, sections: Mapping[str, Mapping[str, Section]], every: bool) -> argparse.ArgumentParser:
    names = tuple(dict.fromkeys(name for named in sections.values() for name in named))
    parser = argparse.ArgumentParser(
        prog=program, description=summary, epilog=f"{epilog.strip()}\n\n{AFTERWARDS}", formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--engine", action="append", choices=tuple(sections), metavar="NAME",
        help=f"this engine only: {', '.join(sections)}; may be given again (default {'all that are here' if every else next(iter(sections))})",
    )  # fmt: skip
    parser.add_argument("--only", action="append", choices=names, metavar="NAME", help="this section only; may be given again")
    parser.add_argument("--system", action="append", metavar="WORD", help="compare only systems with this in their name; may be given again")
    parser.add_argument("--hold", type=_seconds, metavar="SECONDS", help="how long section held lasts (default 600, less with --scale)")
    parser.add_argument("--load", type=_positive, metavar="N", help="tasks a second in section held (default 6000)")
    parser.add_argument("--quick", action="store_true", help="one round of a tenth of everything: to see that it runs, not to believe its numbers")
    parser.add_argument("--rounds", type=_positive, metavar="K", help="how often each side has its turn (default 3)")
    parser.add_argument("--scale", type=_part, metavar="X", help="this part of all counts (default 1.0)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there too")
    parser.add_argument(
        "--dir", default=os.environ.get("BENCH_DIR", "."), help="a directory on a real disk for the stores (default $BENCH_DIR or the current one)"
    )
    return parser


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is not a positive number")
    return value


def _seconds(text: str) -> float:
    value = float(text)
    if not 5 <= value <= 86_400:
        raise argparse.ArgumentTypeError(f"{text} is not between 5 and 86400 seconds")
    return value


def _part(text: str) -> float:
    value = float(text)
    if not 0 < value <= 10:
        raise argparse.ArgumentTypeError(f"{text} is not between 0 and 10")
    return value
