"""The command line: one file per noun, loaded when it is asked for."""

from taskmill.cli.program import main

__all__ = ["main"]
