"""Installs the servers and programs that tests need from Debian's packages, when this is root on Debian and they are missing; otherwise says what is.

The packages would start services of their own. They are kept from it while they are installed: the tests start private servers, and a
port that somebody listens on would be a surprise.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

WANTED = {"curl": "curl", "postgresql": "postgres", "pgbouncer": "pgbouncer", "redis-server": "redis-server", "prometheus": "promtool"}
"""Package, and the program that shows that it is there."""
PLACES = ("/usr/sbin", *map(str, Path("/usr/lib/postgresql").glob("*/bin")))
NO_CLUSTER = Path("/etc/postgresql-common/createcluster.d/taskmill-tests.conf")
NO_SERVICE = Path("/usr/sbin/policy-rc.d")


def missing() -> list[str]:
    given = os.environ.get("TASKMILL_TEST_PROGRAMS")
    path = given if given is not None else os.pathsep.join([os.environ.get("PATH", os.defpath), *PLACES])
    return [package for package, program in WANTED.items() if shutil.which(program, path=path) is None]


def installable() -> bool:
    return os.geteuid() == 0 and Path("/etc/debian_version").exists() and shutil.which("apt-get") is not None


@contextlib.contextmanager
def written(path: Path, text: str, mode: int) -> Iterator[None]:
    """The file is there for a while; one that is there already is left as it is."""
    if path.exists():
        yield
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    path.chmod(mode)
    try:
        yield
    finally:
        path.unlink()


def apt_get(*arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    return subprocess.run(["apt-get", "--quiet", *arguments], env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)


def install(packages: list[str]) -> str:
    """What went wrong; nothing, if the text is empty."""
    installing = ("install", "--yes", "--no-install-recommends", *packages)
    with written(NO_CLUSTER, "create_main_cluster = false\n", 0o644), written(NO_SERVICE, "#!/bin/sh\nexit 101\n", 0o755):
        result = apt_get(*installing)
        if result.returncode != 0:
            apt_get("update")  # the lists of packages may be old, or not be there at all
            result = apt_get(*installing)
    if result.returncode != 0:
        return (result.stderr.strip() or "apt-get failed").splitlines()[-1]
    if "pgbouncer" in packages and shutil.which("systemctl"):
        subprocess.run(["systemctl", "disable", "--quiet", "pgbouncer"], stdin=subprocess.DEVNULL, capture_output=True, check=False)
    return ""


def main() -> int:
    packages = missing()
    if not packages:
        return 0
    names = " ".join(packages)
    if not installable():
        print(f"Servers: not installed: {names}; the tests that need them will be skipped. Remedy: apt-get install {names}", file=sys.stderr)
        return 0
    print(f"Servers: installing Debian's packages {names} for the tests; no service of theirs is started", flush=True)
    wrong = install(packages)
    if wrong:
        print(f"Servers: could not install {names}: {wrong}; the tests that need them will be skipped", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
