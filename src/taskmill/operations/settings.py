"""Settings that code declares and people put over it, under the one version that the reader saw."""

from __future__ import annotations

from taskmill.engine import Engine, Item
from taskmill.errors import Conflict, StaleVersion
from taskmill.operations.names import check_known

__all__ = ["drop", "put"]


async def put(engine: Engine, kind: str, name: str, value: bytes, version: int | None, *, operator: bool | None = None) -> Item:
    """An engine numbers a person's setting apart from the code's; a person has seen the one in force, whosever it is. `operator`: that it was a person's,
    for who knows; the same number may be that of either."""
    if version is None:
        return await engine.put(kind, name, value)
    seen = next((item for item in await engine.items(kind) if item.name == name), None)
    if seen is not None and operator not in (None, seen.operator) and seen.value != value:
        raise StaleVersion(f"{kind} {name!r} is another's by now", field="version", hint="read it again, then put")
    if seen is None or seen.operator:
        return seen if seen is not None and seen.value == value else await engine.put(kind, name, value, version=version)
    if seen.version != version:
        raise StaleVersion(f"{kind} {name!r} has version {seen.version}, not {version}", field="version", hint="read it again, then put")
    return await engine.put(kind, name, value, version=0)


async def drop(engine: Engine, kind: str, name: str, remedy: str, version: int | None = None) -> None:
    """NotFound for a name nobody knows, Conflict for what only code can take back."""
    if await engine.drop(kind, name, version=version):
        return
    check_known(kind, name, [item.name for item in await engine.items(kind)], remedy)
    raise Conflict(f"the {kind} {name!r} is declared by code", code="declared", field="name", hint="remove it from the app, or put your own over it")
