"""The scripts: one `.lua` file a verb, before it those files that it uses; each is known to the server by its SHA-1."""

from __future__ import annotations

import functools
import hashlib
from importlib.resources import files

from msgspec import Struct

__all__ = ["Script", "script"]

STEP = ("step", "limits", "lanes", "moves")
USES = {
    "submit": ("place",),
    "reserve": ("place",),
    "claim": ("full", "pick"),
    "finish": ("full", "place"),
    "checkpoint": ("full",),
    "signal": ("place",),
    "admin": ("full", "place", "ends"),
    "join": ("full", "settings"),
    "leave": ("full", "ends"),
    "heartbeat": ("full", "settings", "ends"),
    "recover": ("full", "ends"),
    "prune": ("full", "ends"),
    "results": ("full", "ends"),
    "put": ("full", "settings"),
    "lead": ("full",),
    "fire": ("place", "settings", "ends"),
    "take": (),
    "outbox": ("full",),
    "move": ("full",),
    "restore": ("place",),
    "listen": (),
    "counts": ("full",),
    "adopt": ("full", "settings"),
    "watch": ("full", "place"),
    "fell": ("full",),
    "attach": ("place",),
    "yield": ("place",),
    "whole": ("full",),
    "complete": ("full",),
    "swift": ("full",),
    "enter": (),
    "look": (),
    "index": (),
    "stuck": ("full", "place"),
    "upgrade": ("full",),
}
"""What each verb needs beside what all of them begin with. Without `full` it brings something new, and is refused when memory is full."""


ALONE = frozenset({"complete", "enter", "look", "swift"})
"""Those that need no more than `step` beside it: nothing of lanes, limits and moves."""


class Script(Struct, frozen=True):
    """A script and its name on the server."""

    name: str
    text: str
    sha: str


@functools.cache
def script(name: str) -> Script:
    folder = files(__package__) / "lua"
    text = "\n".join((folder / f"{part}.lua").read_text(encoding="utf-8") for part in (*(STEP[:1] if name in ALONE else STEP), *USES[name], name))
    return Script(name, text, hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest())
