"""Refuses tracked files that name a package registry or a path of one machine: both make a clone work in one place only.

Beside the well-known registries, the hosts that this machine's own pip and uv settings name are looked for, and the folder of this clone.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

REGISTRIES = r"pypi\.org|pythonhosted\.org|registry\.npmjs\.org|registry\.yarnpkg\.com|npmmirror\.com|mirrors\.[a-z]+\.(?:com|cn|org)"
HOME = r"(?<![\w.])/(?:(?:home|Users)/\w+|root)/|[A-Z]:\\Users\\"
INDEX_SETTINGS = (
    "PIP_INDEX_URL",
    "PIP_EXTRA_INDEX_URL",
    "PIP_FIND_LINKS",
    "UV_INDEX",
    "UV_INDEX_URL",
    "UV_DEFAULT_INDEX",
    "UV_EXTRA_INDEX_URL",
    "UV_FIND_LINKS",
)


def hosts_in_settings() -> set[str]:
    """Registry hosts and folders that this machine's settings name."""
    values = [word for name in INDEX_SETTINGS for word in os.environ.get(name, "").split()]
    hosts = {urlsplit(value).hostname or "" for value in values}
    folders = {value for value in values if value.startswith("/")}
    return {word for word in hosts | folders if len(word) > 3}


def forbidden(root: Path) -> re.Pattern[str]:
    here = [re.escape(word) for word in sorted({*hosts_in_settings(), str(root)})]
    return re.compile("|".join([REGISTRIES, HOME, *here]))


def tracked(root: Path) -> list[Path]:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=root, check=True, capture_output=True).stdout
    return [root / os.fsdecode(name) for name in listed.split(b"\0") if name]


def findings(root: Path, path: Path, pattern: re.Pattern[str]) -> Iterator[str]:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (UnicodeDecodeError, FileNotFoundError, IsADirectoryError):
        return  # pictures and archives; files that are being moved
    for number, line in enumerate(lines, start=1):
        if match := pattern.search(line):
            yield f"{path.relative_to(root)}:{number}: {match.group()!r} belongs to one machine or registry"


def main() -> int:
    root = Path(__file__).resolve().parent.parent
    pattern = forbidden(root)
    paths = tracked(root)
    found = [finding for path in paths for finding in findings(root, path, pattern)]
    print("\n".join(found) or f"Tracked files: {len(paths)}, none names a registry or a machine")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
