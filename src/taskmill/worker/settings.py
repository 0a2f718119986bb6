"""What a supervisor tells its children, and what the first of them tells it: the app names its store, and only a child imports the app."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from taskmill import engines
from taskmill.config import Secret, Settings, mask_url
from taskmill.engine import Engine

if TYPE_CHECKING:
    from taskmill.app import App

__all__ = ["Start", "StoreSettings"]


class Start(msgspec.Struct, frozen=True, kw_only=True):
    """What a child needs to begin."""

    target: str
    worker: str
    queues: tuple[str, ...] = ()
    info: Mapping[str, str] = {}
    log_level: str | None = None


class StoreSettings(msgspec.Struct, frozen=True):
    """The settings of an app as data, its secrets in the open: for a socket between two processes of one program, never for a log."""

    base: str
    url: str
    values: dict[str, int | str | bool | None]

    @classmethod
    def of(cls, app: App) -> StoreSettings:
        settings = app.settings
        values = {name: value for name in settings.__struct_fields__ if not isinstance(value := getattr(settings, name), Secret)}
        return cls(str(app.loaded.folder(app.folder)), settings.url.reveal(), values)

    @property
    def settings(self) -> Settings:
        return msgspec.structs.replace(Settings(), url=Secret(self.url, mask_url(self.url)), **self.values)

    def engine(self) -> Engine:
        """The app's store, not yet opened."""
        return engines.of_settings(self.settings, Path(self.base))
