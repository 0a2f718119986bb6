"""API keys over HTTP: made, listed without what they are made of, revoked; and what the caller's own may do."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from taskmill.server.access import Scope, key_data
from taskmill.server.routes import Answer, Call, Nothing, Route

__all__ = ["ROUTES"]

ScopeWord = Annotated[str, Meta(extra_json_schema={"enum": [scope.value for scope in Scope]})]
Quota = Annotated[int, Meta(ge=1, le=1 << 30)]


class KeyBody(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A key to make."""

    scopes: Annotated[list[ScopeWord], Meta(min_length=1, max_length=20)]
    name: Annotated[str, Meta(description="What people call it.", extra_json_schema={"maxLength": 128})] = ""
    tenant: (
        Annotated[str, Meta(description="Whose tasks it is for; left out: the whole store.", extra_json_schema={"minLength": 1, "maxLength": 128})] | None
    ) = None
    rate: Quota | None = None
    """Requests in a second."""
    depth: Quota | None = None
    """It may submit to a queue that holds fewer live tasks than this."""


async def list_keys(call: Call[Nothing, None]) -> Answer:
    return Answer({"keys": [key_data(key) for key in await call.desk.keys_known(call.caller)]})


async def create_key(call: Call[Nothing, KeyBody]) -> Answer:
    body = call.body
    token, key = await call.desk.key_create(call.caller, name=body.name, scopes=body.scopes, tenant=body.tenant, rate=body.rate, depth=body.depth)
    return Answer({**key_data(key), "token": token}, ((b"location", f"{PATH}/{key.id}".encode()),))


async def revoke_key(call: Call[Nothing, None]) -> Answer:
    await call.desk.key_revoke(call.caller, call.params["id"])
    return Answer(None)


async def get_me(call: Call[Nothing, None]) -> Answer:
    caller = call.caller
    scopes = sorted(scope for scope in Scope if caller.may(scope))
    return Answer({"key": caller.key or None, "scopes": scopes, "tenant": caller.tenant, "rate": caller.rate, "depth": caller.depth})


PATH = "/api/v1/keys"

ROUTES = (
    Route(method="GET", path=PATH, handler=list_keys, summary="Every key, without what it is made of", scope=Scope.ADMIN, whole=True, gives="Keys"),
    Route(method="POST", path=PATH, handler=create_key, summary="Make a key; its token is in this answer and nowhere else", scope=Scope.ADMIN, whole=True,
          body=KeyBody, status=201, gives="NewKey"),
    Route(method="DELETE", path=f"{PATH}/{{id}}", handler=revoke_key, summary="Revoke a key; it is refused everywhere within 5 s", scope=Scope.ADMIN,
          whole=True, status=204, refuses=(404,)),
    Route(method="GET", path="/api/v1/me", handler=get_me, summary="What the caller's key may do", scope=None, any_key=True, gives="Me"),
)  # fmt: skip
