"""`python -m taskmill` is `taskmill`."""

from __future__ import annotations

import sys

from taskmill.cli import main

if __name__ == "__main__":
    sys.exit(main())
