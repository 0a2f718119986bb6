"""For whoever keeps the server running and whoever watches it."""

from __future__ import annotations

from taskmill.server.access import Scope
from taskmill.server.routes import Answer, Call, Nothing, Route

__all__ = ["ROUTES"]


async def healthz(call: Call[Nothing, None]) -> Answer:
    """That it answers says that its loop turns; a store that is away is no reason to restart it."""
    return Answer({"live": True})


async def livez(call: Call[Nothing, None]) -> Answer:
    return Answer({"live": True})


async def readyz(call: Call[Nothing, None]) -> Answer:
    reasons = await call.service.missing()
    return Answer({"ready": False, "reasons": reasons}, status=503) if reasons else Answer({"ready": True})


async def startupz(call: Call[Nothing, None]) -> Answer:
    return Answer({"started": call.service.started}, status=200 if call.service.started else 503)


async def metrics(call: Call[Nothing, None]) -> Answer:
    return Answer(await call.service.scrape(), ((b"content-type", call.service.scrape_type.encode()),))


ROUTES = (
    Route(method="GET", path="/healthz", handler=healthz, summary="Whether the process is alive", scope=None, gives="Live"),
    Route(method="GET", path="/livez", handler=livez, summary="The same, as Kubernetes calls it", scope=None, gives="Live"),
    Route(method="GET", path="/readyz", handler=readyz, summary="Whether it can do its work: the store answers and it is not stopping", scope=None,
          gives="Ready", also=(503,)),
    Route(method="GET", path="/startupz", handler=startupz, summary="Whether it has started", scope=None, gives="Started", also=(503,)),
    Route(method="GET", path="/metrics", handler=metrics, summary="Metrics in the text format of Prometheus", scope=Scope.READ, whole=True, gives="Text"),
)  # fmt: skip
