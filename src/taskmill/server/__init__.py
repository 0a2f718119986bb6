"""The server: REST, gRPC, WebSocket and server-sent events over one store, for callers of many tenants.

    http, grpc, live ──▶ access (who calls) ──▶ desk (what this caller may do, with whose tasks) ──▶ operations ──▶ engine

A surface reads a request and writes an answer; whatever it means is said once, in `desk` and below it.
"""
