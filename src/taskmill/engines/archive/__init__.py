"""The archive: what has ended in a hot store lies in PostgreSQL too, and is read there when the hot store no longer has it.

    a step ends a task ──▶ its entry in the outbox ("archive") ──▶ delivery: the whole record and its attempts, upserted ──▶ the entry is cut
    get, attempts, wait ──▶ the hot store ──▶ what it does not have: the archive

Work never asks the archive for anything. While it is away, entries wait in the hot store and the records they are about are not pruned; so nothing is
dropped, and the hot store grows.
"""
