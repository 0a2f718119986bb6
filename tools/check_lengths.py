"""Refuses files and functions that have grown past what one reader can hold: 800 lines a file, 80 a function.

The soft limits (400 and 40) are shown with `--soft` and refuse nothing. A function's decorators and docstring count: they are read too.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

FILE_HARD, FILE_SOFT = 800, 400
FUNCTION_HARD, FUNCTION_SOFT = 80, 40
SUFFIXES = frozenset({".py", ".sql", ".lua"})
GENERATED = re.compile(r"_pb2(_grpc)?\.py$")


def files_under(roots: list[str]) -> Iterator[Path]:
    for root in map(Path, roots):
        found = [root] if root.is_file() else sorted(root.rglob("*"))
        yield from (path for path in found if path.suffix in SUFFIXES and "__pycache__" not in path.parts and not GENERATED.search(path.name))


def long_functions(path: Path, text: str, limit: int) -> Iterator[str]:
    for node in ast.walk(ast.parse(text, filename=str(path))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
            lines = (node.end_lineno or node.lineno) - first + 1
            if lines > limit:
                yield f"{path}:{first}: {node.name} has {lines} lines, at most {limit}"


def findings(path: Path, file_limit: int, function_limit: int) -> Iterator[str]:
    text = path.read_text(encoding="utf-8")
    lines = len(text.splitlines())
    if lines > file_limit:
        yield f"{path}: {lines} lines, at most {file_limit}"
    if path.suffix == ".py":
        yield from long_functions(path, text, function_limit)


def main(arguments: list[str]) -> int:
    soft = "--soft" in arguments
    limits = (FILE_SOFT, FUNCTION_SOFT) if soft else (FILE_HARD, FUNCTION_HARD)
    paths = list(files_under([argument for argument in arguments if argument != "--soft"]))
    found = [finding for path in paths for finding in findings(path, *limits)]
    print("\n".join(found) or f"Lengths: {len(paths)} files, none too long")
    return 1 if found and not soft else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
