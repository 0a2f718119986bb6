"""Names that nobody knows: an error that says which one was meant, never an empty answer that looks like success."""

from __future__ import annotations

from collections.abc import Iterable

from taskmill.errors import NotFound, nearest

__all__ = ["check_known", "unknown"]

SHOWN = 5
"""Names listed when none is near: more is no help."""


def check_known(kind: str, name: str, known: Iterable[str], remedy: str, *, field: str = "name") -> None:
    """NotFound unless the name is one of them."""
    names = sorted(set(known))
    if name not in names:
        raise unknown(kind, name, names, remedy, field=field)


def unknown(kind: str, name: str, known: Iterable[str], remedy: str, *, field: str = "name") -> NotFound:
    """`remedy` is said when no known name is near."""
    names = sorted(set(known))
    near = nearest(name, names)
    if near:
        hint = f"did you mean {near!r}?"
    elif names:
        rest = ", …" if len(names) > SHOWN else ""
        hint = f"known: {', '.join(names[:SHOWN])}{rest}; {remedy}"
    else:
        hint = f"there are none yet; {remedy}"
    return NotFound(f"there is no {kind} {name!r:.140}", code=f"unknown_{kind}", field=field, hint=hint)
