"""`taskmill key`: made, listed and revoked on a real store, with the same audit log as the server's."""

from __future__ import annotations

import hashlib
import json
import re

from tests.surfaces.cli_tools import Cli

TOKEN = re.compile(r"tm_([0-9a-f]{12})_[A-Za-z0-9_-]{43}\n")


def test_a_key_is_printed_once(cli: Cli) -> None:
    said = cli.ok("key", "create", "--scope", "submit", "--scope", "read", "--tenant", "acme", "--name", "shop", "--rate", "10", "--depth", "20")
    found = TOKEN.fullmatch(said.out)
    assert found is not None
    assert found[1] in said.err
    assert said.out.strip() not in said.err
    [item] = cli.do(lambda engine: engine.items("key"))
    assert json.loads(item.value)["hash"] == hashlib.sha256(said.out.strip().encode()).hexdigest()
    listed = cli.ok("key", "list")
    assert listed.lines[0].split("\t")[:6] == [found[1], "shop", "submit,read", "acme", "10", "20"]
    [shown] = cli.ok("key", "list", "--json").objects
    assert (shown["id"], shown["scopes"], shown["tenant"], shown["rate"], shown["depth"]) == (found[1], ["submit", "read"], "acme", 10, 20)
    for text in (listed.out, cli.ok("key", "list", "--json").out):
        assert said.out.strip() not in text
        assert "hash" not in text


def test_a_key_as_json(cli: Cli) -> None:
    [made] = cli.ok("key", "create", "--scope", "admin", "--json").objects
    assert made["scopes"] == ["admin"]
    assert TOKEN.fullmatch(f"{made['token']}\n")


def test_a_key_is_revoked(cli: Cli) -> None:
    [made] = cli.ok("key", "create", "--scope", "admin", "--name", "ops", "--json").objects
    id = str(made["id"])
    assert "add --yes" in cli.refused(2, "key", "revoke", id)
    assert cli.ok("key", "revoke", id, "--dry-run").out == f"{id} (ops) would be revoked\n"
    assert len(cli.ok("key", "list").lines) == 1
    assert cli.ok("key", "revoke", id, "--yes").out == f"{id} is revoked\n"
    assert cli.ok("key", "list").out == ""
    assert "there is no key" in cli.refused(1, "key", "revoke", id, "--yes")


def test_what_is_refused(cli: Cli) -> None:
    assert "Missing option '--scope'" in cli.refused(2, "key", "create")
    assert "did you mean submit?" in cli.refused(2, "key", "create", "--scope", "submitt")
    assert "without --tenant" in cli.refused(2, "key", "create", "--scope", "worker", "--tenant", "acme")
    assert "--rate" in cli.refused(2, "key", "create", "--scope", "read", "--rate", "0")
    assert "name" in cli.refused(2, "key", "create", "--scope", "read", "--name", "a\nb")
    assert cli.ok("key", "list").out == ""


def test_what_is_changed_is_in_the_audit_log(cli: Cli) -> None:
    token = cli.ok("key", "create", "--scope", "read", "--name", "shop").out.strip()
    id = token.split("_")[1]
    cli.ok("key", "revoke", id, "--yes")
    text = (cli.folder / "taskmill-audit.jsonl").read_text(encoding="utf-8")
    lines = [json.loads(line) for line in text.splitlines()]
    assert [(line["action"], line["target"], line["outcome"]) for line in lines] == [
        ("key.create", "shop", "asked"),
        ("key.create", "shop", "done"),
        ("key.revoke", id, "asked"),
        ("key.revoke", id, "done"),
    ]
    assert {line["details"]["by"] for line in lines} == {"command line"}
    assert token.split("_", 2)[2] not in text
