"""`python examples/tour`: see program.py."""

from __future__ import annotations

import sys
from pathlib import Path


def start() -> int:
    """Python puts the folder itself on its path; the package is found from the one above."""
    sys.path[0] = str(Path(__file__).resolve().parent.parent)
    from tour.program import main

    return main(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(start())
