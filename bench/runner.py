"""The command line that all benchmarks share: which sections, how much of everything, where, and the table at the end."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path

from bench.report import Figure, Plan, show, write_json

__all__ = ["Section", "run"]

Section = Callable[[Plan], Awaitable[list[Figure]]]

AFTERWARDS = "The exit status says whether the run came to its end, not whether targets were met."


def run(program: str, summary: str, epilog: str, sections: Mapping[str, Section], arguments: Sequence[str] | None) -> int:
    """Exit code: 0 came to its end, 2 asked for what it cannot do, 130 stopped."""
    options = _parser(program, summary, epilog, sections).parse_args(arguments)
    directory = Path(options.dir)
    if not directory.is_dir():
        print(f"bench: {directory} is not a directory; make it first, or name another with --dir", file=sys.stderr)
        return 2
    scale = options.scale if options.scale is not None else 0.1 if options.quick else 1.0
    rounds = options.rounds if options.rounds is not None else 1 if options.quick else 3
    plan = Plan(directory, rounds, scale, max(0.2, 4.0 * min(1.0, scale * 5)))
    try:
        asyncio.run(_measure(plan, {name: section for name, section in sections.items() if name in (options.only or sections)}, options.json))
    except KeyboardInterrupt:
        print("bench: stopped", file=sys.stderr)
        return 130
    return 0


async def _measure(plan: Plan, sections: Mapping[str, Section], file: Path | None) -> None:
    figures = [figure for section in sections.values() for figure in await section(plan)]
    show(figures, plan)
    if file is not None:
        write_json(file, figures, plan)


def _parser(program: str, summary: str, epilog: str, sections: Mapping[str, Section]) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=program, description=summary, epilog=f"{epilog.strip()}\n\n{AFTERWARDS}", formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", action="append", choices=tuple(sections), metavar="NAME", help="this section only; may be given again")
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


def _part(text: str) -> float:
    value = float(text)
    if not 0 < value <= 10:
        raise argparse.ArgumentTypeError(f"{text} is not between 0 and 10")
    return value
