"""What a join costs: every setting it declares is written once, and all settings are read once, however many types it brings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from taskmill.engine import Joining
from taskmill.engines.settings import Settings
from taskmill.engines.sqlite.engine import SQLiteEngine
from taskmill.task import TypeSettings


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """One entry for each time that a change of settings made them be read anew."""
    counted: list[int] = []
    read = Settings.again

    def again(self: Settings, rows: Any) -> Settings:
        found = read(self, rows)
        counted.append(len(found.types))
        return found

    monkeypatch.setattr(Settings, "again", again)
    return counted


@pytest.mark.parametrize("types", [1, 500])
async def test_a_join_reads_the_settings_once(tmp_path: Path, reads: list[int], types: int) -> None:
    engine = SQLiteEngine(tmp_path / "store.db")
    await engine.open()
    try:
        await engine.join(Joining(worker="one", queues=("default",), types={f"type-{n}": TypeSettings() for n in range(types)}))
        assert len(reads) <= 2, "when the step begins, and when all is declared"
        assert reads[-1] == types
    finally:
        await engine.close()
