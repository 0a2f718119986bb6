"""The SDK over a server: `taskmill.Client` has the verbs of an App for callers that have a URL and a key instead of a store.

    client (Client, .sync) ──▶ operations (batches, waits) ──▶ http (one session, repeats) ──▶ server

Whatever is asked may be asked again: a task has its id before it is sent, so an answer that got lost is asked for once more and gives one task.
"""

from taskmill.client.client import Client, SyncClient

__all__ = ["Client", "SyncClient"]
