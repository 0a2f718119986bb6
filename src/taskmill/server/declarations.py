"""What remote workers declare: settings of types, and limits with them.

A worker's key may run every type, but what a type is belongs to the app that declares it: its queue, its retries, its limits. So the key sets up types that no
one has declared yet, and changes those that it declared itself and that no one has changed since; everything else needs the scope `admin`. What each key has
declared is kept in the store, under its id, and is bounded.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext

import msgspec

from taskmill.engine import Engine, Joining
from taskmill.errors import Forbidden, InvalidInput
from taskmill.server.access import Caller, Scope
from taskmill.server.audit import Audit
from taskmill.task import TypeSettings

__all__ = ["MOST_TYPES", "Declarations"]

KIND = "declared"
"""The kind of setting that has, by the id of a key, the types that it declared."""
MOST_TYPES = 1_000
"""Types of one worker, and all that one key declares."""
MOST_NOTED = 20
"""Names of types that the audit log has of one join."""

_Own = dict[str, TypeSettings]


class Declarations:
    """The types of a store, as remote workers may change them."""

    def __init__(self, engine: Engine, audit: Audit | None) -> None:
        self._engine = engine
        self._audit = audit

    async def join(self, caller: Caller, joining: Joining, stored: Mapping[str, TypeSettings]) -> None:
        """Register the worker; refused where it declares what is another's. What it changes is noted before and after."""
        limits = {item.name: item.value for item in await self._engine.items("limit")} if joining.limits else {}
        changed = sorted(
            {name for name, settings in joining.types.items() if stored.get(name) != settings}
            | {name for name, value in joining.limits.items() if not _same(limits.get(name), value)}
        )
        if changed and not caller.may(Scope.ADMIN):
            await self._claim(caller, joining, stored, limits, changed)
        details = {"types": " ".join(changed[:MOST_NOTED]), "worker": joining.worker}
        noted = nullcontext() if self._audit is None or not changed else self._audit.deed(
            "type.declare", f"{len(changed)} types", key=caller.key, tenant=caller.tenant, details=details
        )  # fmt: skip
        async with noted:
            await self._engine.join(joining)

    async def _claim(self, caller: Caller, joining: Joining, stored: Mapping[str, TypeSettings], limits: Mapping[str, bytes], changed: list[str]) -> None:
        """These types become the key's own, if it may have them."""
        own = await self._own(caller)
        for name in changed:
            if name in stored and own.get(name) != stored[name]:
                raise _another(name)
            if name in joining.limits and name in limits and name not in own:
                raise _another(name)
        own |= {name: joining.types[name] for name in changed if name in joining.types}
        if len(own) > MOST_TYPES:
            raise InvalidInput(
                f"this key would have declared {len(own)} types", code="too_many_types", field="types", hint=f"at most {MOST_TYPES} of a key; use another key"
            )
        await self._engine.put(KIND, caller.key, msgspec.json.encode(own))

    async def _own(self, caller: Caller) -> _Own:
        for item in await self._engine.items(KIND):
            if item.name == caller.key:
                return msgspec.json.decode(item.value, type=_Own)
        return {}


def _same(stored: bytes | None, given: bytes) -> bool:
    return stored is not None and msgspec.json.decode(stored) == msgspec.json.decode(given)


def _another(name: str) -> Forbidden:
    return Forbidden(
        "this type is declared by another",
        code="type_declared",
        field=f"types.{name[:80]}",
        hint="give null instead of settings, or use a key with the scope admin",
    )
