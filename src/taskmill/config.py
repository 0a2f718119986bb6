"""Settings: arguments, then the environment (`TASKMILL_*`), then `taskmill.toml`, then the defaults; and the URL that names the engine.

`Settings` below is the one table: each line is a setting with its default, and its `Setting` says kind, bounds and meaning. The reference
page, `taskmill config show` and the messages here are made from it (`reference`). Nothing is read at import: `load` is given what it may read.

What is unknown is refused, never skipped, because a misspelt setting that is silently ignored shows only in production. The refusal
names the variable, or the file and line, and the nearest name. Secrets are held in `Secret`, which prints as `***` (a URL: all of it but
the password) wherever it is printed; only `reveal()` gives the text.
"""

from __future__ import annotations

import ipaddress
import os
import re
import stat
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Literal, NoReturn, get_type_hints
from urllib.parse import parse_qsl, unquote

import msgspec

from taskmill.clock import DAY, HOUR, MILLISECOND, MINUTE, SECOND, duration, format_duration
from taskmill.codec import MOST_PAYLOAD, PAYLOAD_LIMIT
from taskmill.errors import InvalidInput, InvalidSettings, nearest
from taskmill.retry import MAX_RETRIES
from taskmill.task import (
    DEFAULT_DEDUPE_WINDOW,
    DEFAULT_MAX_CRASHES,
    DEFAULT_TIMEOUT,
    LONGEST_DEDUPE_WINDOW,
    LONGEST_REMOTE_LEASE,
    LONGEST_TIMEOUT,
    MOST_CRASHES,
    SHORTEST_DEDUPE_WINDOW,
    SHORTEST_REMOTE_LEASE,
    SHORTEST_TIMEOUT,
)

__all__ = [
    "FILE_NAME",
    "MEMORY",
    "Loaded",
    "Secret",
    "Setting",
    "Settings",
    "engine_kind",
    "find_file",
    "is_loopback",
    "load",
    "mask_url",
    "reference",
    "sqlite_path",
    "url_parameters",
]

FILE_NAME = "taskmill.toml"
MEMORY = Path(":memory:")

EngineKind = Literal["sqlite", "postgres", "redis", "kafka"]
Kind = Literal["duration", "integer", "bytes", "boolean", "choice", "name", "text", "secret", "url"]

_SCHEMES: dict[str, EngineKind] = {"sqlite": "sqlite", "postgresql": "postgres", "postgres": "postgres", "redis": "redis", "rediss": "redis", "kafka": "kafka"}
_OWN_PARAMETERS: dict[EngineKind, tuple[str, ...]] = {
    "sqlite": (),
    "postgres": ("schema", "pool", "host", "port", "application_name", "sslmode", "sslrootcert", "sslcert", "sslkey", "target_session_attrs"),
    "redis": ("archive", "cluster", "prefix", "sentinel"),
    "kafka": ("state", "archive"),
}
# These are settings too; in a URL they travel with the store they are about.
_SHARED_PARAMETERS: dict[EngineKind, tuple[str, ...]] = {
    "sqlite": ("durability", "busy_timeout"),
    "postgres": ("durability", "busy_timeout"),
    "redis": ("durability", "busy_timeout"),
    "kafka": ("durability",),
}


class Secret:
    """Text that prints masked, whoever prints it."""

    __slots__ = ("_shown", "_text")

    def __init__(self, text: str, shown: str = "***") -> None:
        self._text = text
        self._shown = shown

    def reveal(self) -> str:
        """The text itself, for the one place that needs it."""
        return self._text

    def __str__(self) -> str:
        return self._shown

    def __repr__(self) -> str:
        return repr(self._shown)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and other._text == self._text

    def __hash__(self) -> int:
        return hash(self._text)


class Setting(msgspec.Struct, frozen=True):
    """What a setting means and what it may be; durations in microseconds."""

    kind: Kind
    meaning: str
    minimum: int = 0
    maximum: int = 100 * 365 * DAY
    choices: tuple[str, ...] = ()


def _default_url() -> Secret:
    return Secret("sqlite:///taskmill.db", "sqlite:///taskmill.db")


class Settings(msgspec.Struct, frozen=True, kw_only=True, repr_omit_defaults=False):
    """Every setting, once. Durations are microseconds here and `"90s"` or seconds wherever people write them."""

    url: Annotated[Secret, Setting("url", "The store: sqlite:///file, postgresql://, redis://, rediss:// or kafka://; its engine is the scheme")] = (
        msgspec.field(default_factory=_default_url)
    )
    durability: Annotated[
        str, Setting("choice", "What an acknowledged submit has reached: the disk, the store's memory, or a replica", choices=("fsync", "local", "replicated"))
    ] = "fsync"
    busy_timeout: Annotated[
        int, Setting("duration", "How long to wait for the store (another process's write, a connection, an answer) before giving up", minimum=0, maximum=HOUR)
    ] = 30 * SECOND
    wait_for_store: Annotated[
        int, Setting("duration", "How long worker, up, api and scheduler wait at their start for a store that is not there yet", maximum=DAY)
    ] = 0
    name: Annotated[str, Setting("name", "The app whose types and schedules this program declares")] = "app"
    version: Annotated[int, Setting("integer", "The version of the app's declarations; a lower one never overwrites a higher one", maximum=2**31 - 1)] = 0

    beat: Annotated[
        int,
        Setting(
            "duration", "How often a worker says that it lives and what it holds; leaders renew their term with it", minimum=10 * MILLISECOND, maximum=HOUR
        ),
    ] = SECOND
    lease: Annotated[
        int, Setting("duration", "How long a worker may be silent before its tasks run elsewhere; at least three beats", minimum=20 * MILLISECOND, maximum=DAY)
    ] = 4 * SECOND
    remote_lease: Annotated[
        int,
        Setting(
            "duration",
            "The lease of workers that pull over the network and ask for none; at least `lease`, which it follows where it is not given",
            minimum=SHORTEST_REMOTE_LEASE,
            maximum=LONGEST_REMOTE_LEASE,
        ),
    ] = 30 * SECOND
    term: Annotated[
        int, Setting("duration", "How long a leader may be silent before another one leads; at least two beats", minimum=20 * MILLISECOND, maximum=DAY)
    ] = 4 * SECOND
    recovery_interval: Annotated[int, Setting("duration", "How often lost tasks are looked for; less than a lease", minimum=10 * MILLISECOND, maximum=HOUR)] = (
        SECOND // 2
    )
    maintenance: Annotated[bool, Setting("boolean", "Whether workers run recovery, schedules, pruning and the outbox too")] = True
    grace_period: Annotated[
        int, Setting("duration", "How long a worker has after SIGTERM: running tasks may go on until its last 2 s, in which the rest is released", maximum=DAY)
    ] = 20 * SECOND
    kill_after: Annotated[
        int,
        Setting(
            "duration", "How long a handler may go on after it was cancelled or its time was over, before its process is killed", minimum=SECOND, maximum=HOUR
        ),
    ] = 5 * SECOND
    start_timeout: Annotated[
        int,
        Setting(
            "duration",
            "How long a process for an isolated task may take to import and start the app, before its own time",
            minimum=SECOND,
            maximum=HOUR,
        ),
    ] = MINUTE
    concurrency: Annotated[int, Setting("integer", "How many tasks one worker process runs at once", minimum=1, maximum=4_000)] = 10
    processes: Annotated[int, Setting("integer", "How many worker processes one `taskmill worker` starts", minimum=1, maximum=256)] = 1
    max_tasks: Annotated[int, Setting("integer", "Tasks after which a worker process is replaced by a new one; 0: never", maximum=2**31 - 1)] = 0
    max_memory: Annotated[int, Setting("bytes", "Resident bytes at which a worker process is replaced by a new one; 0: never", maximum=2**50)] = 0

    max_retries: Annotated[int, Setting("integer", "Failures after which a task is tried again, unless its type says otherwise", maximum=MAX_RETRIES)] = 3
    max_crashes: Annotated[
        int, Setting("integer", "Lost leases after which a task is tried again; the next one makes it dead as poison", maximum=MOST_CRASHES)
    ] = DEFAULT_MAX_CRASHES
    timeout: Annotated[
        int, Setting("duration", "How long one attempt may take, unless its type says otherwise", minimum=SHORTEST_TIMEOUT, maximum=LONGEST_TIMEOUT)
    ] = DEFAULT_TIMEOUT
    payload_limit: Annotated[int, Setting("bytes", "The largest payload, result or checkpoint, as stored", minimum=1024, maximum=MOST_PAYLOAD)] = PAYLOAD_LIMIT

    history_retention: Annotated[
        int,
        Setting(
            "duration",
            "How long completed and cancelled tasks are kept, with their attempts; their results for `result_retention` at most",
            minimum=MINUTE,
            maximum=3650 * DAY,
        ),
    ] = 14 * DAY
    result_retention: Annotated[
        int,
        Setting("duration", "How long results of completed tasks are kept; after it their records stay, without the result", minimum=HOUR, maximum=14 * DAY),
    ] = 14 * DAY
    dead_retention: Annotated[int, Setting("duration", "How long dead letters are kept", minimum=MINUTE, maximum=3650 * DAY)] = 14 * DAY
    dedupe_window: Annotated[
        int,
        Setting(
            "duration",
            "How long an idempotency key gives one task, and at least until that task has ended",
            minimum=SHORTEST_DEDUPE_WINDOW,
            maximum=LONGEST_DEDUPE_WINDOW,
        ),
    ] = DEFAULT_DEDUPE_WINDOW
    inbox_retention: Annotated[
        int, Setting("duration", "How long a message of the inbox is known: at least for as long as it can come again", minimum=MINUTE, maximum=3650 * DAY)
    ] = 14 * DAY

    host: Annotated[str, Setting("text", "The address that the API listens on")] = "127.0.0.1"
    port: Annotated[int, Setting("integer", "The port of REST, WebSocket and metrics", minimum=1, maximum=65_535)] = 8080
    grpc_port: Annotated[int, Setting("integer", "The port of gRPC", minimum=1, maximum=65_535)] = 9090
    audit_log: Annotated[
        str, Setting("text", "The file that every change made through the API is appended to; a relative path starts beside a store that is a file")
    ] = "taskmill-audit.jsonl"
    allowed_origins: Annotated[str, Setting("text", "Origins beside its own from which pages in a browser may open /ws, separated by commas")] = ""
    cors_origins: Annotated[
        str, Setting("text", "Origins whose pages in a browser may call REST, separated by commas, as `https://app.example.com`; such a call needs a key")
    ] = ""
    allowed_hosts: Annotated[
        str, Setting("text", "Names that callers may call the API by, separated by commas: requests for another host are refused; empty: any name")
    ] = ""
    connections_per_address: Annotated[
        int, Setting("integer", "Connections that one address may have (of IPv6, one /64); 0: a quarter of all, on this machine all", minimum=0, maximum=10_000)
    ] = 0
    grpc_reflection: Annotated[bool, Setting("boolean", "Whether gRPC tells callers without a key which services there are")] = True
    server: Annotated[str, Setting("text", "The URL of the API that a client calls; several of one store are separated by commas")] = "http://127.0.0.1:8080"
    tls_cert: Annotated[str | None, Setting("text", "The server's certificate, a PEM file; with `tls_key`, REST and gRPC are served over TLS")] = None
    tls_key: Annotated[str | None, Setting("text", "The key of `tls_cert`, a PEM file without a password")] = None
    tls_client_ca: Annotated[
        str | None, Setting("text", "A PEM file with the authority that signs the clients' certificates; only clients that show one are let in (mTLS)")
    ] = None
    api_key: Annotated[Secret | None, Setting("secret", "The key that the command line and the client show to the API")] = None
    log_level: Annotated[str, Setting("choice", "The least important log lines that are written", choices=("debug", "info", "warning", "error"))] = "info"
    log_format: Annotated[str, Setting("choice", "How log lines are written: for people, or one JSON object a line", choices=("text", "json"))] = "text"


class Loaded(msgspec.Struct, frozen=True):
    """The settings in force, where each came from, and what deserves a warning."""

    settings: Settings
    origins: dict[str, str]
    file: Path | None
    warnings: tuple[str, ...] = ()

    def folder(self, app_folder: Path) -> Path:
        """Where relative paths start: beside `taskmill.toml`, else beside the app."""
        return self.file.parent if self.file else app_folder

    def rows(self) -> list[tuple[str, str, str]]:
        """Name, value as people write it (secrets masked) and origin of every setting."""
        return [(name, _written(getattr(self.settings, name), _TABLE[name].kind), self.origins[name]) for name in _TABLE]


def reference() -> list[tuple[str, str, Setting]]:
    """Every setting with its default as people write it: the source of the reference page."""
    return [(name, _written(getattr(_DEFAULTS, name), setting.kind), setting) for name, setting in _TABLE.items()]


def _written(value: object, kind: Kind) -> str:
    if value is None:
        return ""
    if kind == "duration" and isinstance(value, int):
        return format_duration(value)
    return str(value).lower() if kind == "boolean" else str(value)


_TABLE: dict[str, Setting] = {name: hint.__metadata__[0] for name, hint in get_type_hints(Settings, include_extras=True).items()}
_DEFAULTS = Settings()


# Sources


_FILE, _ENVIRONMENT, _ARGUMENT = 1, 2, 3  # the higher goes before the lower


class _Given(msgspec.Struct, frozen=True):
    """One setting as somebody wrote it: `field` is what they wrote it under, `place` says where."""

    value: object
    rank: int
    field: str
    place: str

    def refuse(self, code: str, message: str, hint: str | None) -> NoReturn:
        suffix = f", in {self.place}" if self.place else ""
        raise InvalidSettings(message + suffix, code=code, field=self.field, hint=hint) from None

    @property
    def origin(self) -> str:
        return f"argument {self.field}" if self.rank == _ARGUMENT else self.place or self.field


def load(arguments: Mapping[str, object], environ: Mapping[str, str], file: Path | None = None, *, folder: Path | None = None) -> Loaded:
    """The settings in force. An argument that is None and a variable that is empty count as not given; without `file`, it is
    searched for in `folder` (the current one) and the folders above."""
    path = file or find_file(folder or Path.cwd())
    sources = [_from_file(path) if path else {}, _from_environment(environ), _from_arguments(arguments)]
    given = {name: one for source in sources for name, one in _known(source, sources).items()}
    values = {name: _READERS[_TABLE[name].kind](one, _TABLE[name]) for name, one in given.items()}
    _spread_url(given, values)
    settings = msgspec.structs.replace(_DEFAULTS, **values)
    if "remote_lease" not in values:  # nobody who makes leases longer means to be refused for one that was not mentioned
        settings = msgspec.structs.replace(settings, remote_lease=max(settings.remote_lease, settings.lease))
    _check(settings, given)
    origins = {name: given[name].origin if name in given else "default" for name in _TABLE}
    return Loaded(settings=settings, origins=origins, file=path.absolute() if path else None, warnings=_exposed(path, given, settings))


def find_file(folder: Path) -> Path | None:
    """The nearest `taskmill.toml`, from this folder upward: to the home folder, or to where another file system begins. One that another user wrote is refused,
    because it could name that user's store, and this program would bring its tasks there."""
    path = next((found / FILE_NAME for found in _searched(folder.absolute()) if (found / FILE_NAME).is_file()), None)
    if path is not None and path.stat().st_uid not in {0, os.geteuid()}:
        hint = f"make it yours: chown {os.geteuid()} {path}; or remove it"
        raise InvalidSettings(f"{path} belongs to another user", code="foreign_file", field="file", hint=hint)
    return path


def _searched(start: Path) -> Iterator[Path]:
    home = Path("~").expanduser()
    device = start.stat().st_dev if start.exists() else None
    for folder in (start, *start.parents):
        if device is not None and folder.exists() and folder.stat().st_dev != device:
            return
        yield folder
        if folder == home:
            return


def _from_arguments(arguments: Mapping[str, object]) -> dict[str, _Given]:
    return {name: _Given(value, _ARGUMENT, name, "") for name, value in arguments.items() if value is not None}


# A Kubernetes service named taskmill makes TASKMILL_PORT=tcp://… and its like in every pod; they are not ours.
_SERVICE_LINK = re.compile(r"TASKMILL_(?:\w+_)?(?:SERVICE_HOST|SERVICE_PORT(?:_\w+)?|PORT_\d+_(?:TCP|UDP|SCTP)(?:_\w+)?)", re.ASCII)
_SERVICE_ADDRESS = re.compile(r"(?:tcp|udp|sctp)://", re.ASCII)


def _from_environment(environ: Mapping[str, str]) -> dict[str, _Given]:
    found = {}
    for variable, value in environ.items():
        foreign = _SERVICE_LINK.fullmatch(variable) or (variable.endswith("_PORT") and _SERVICE_ADDRESS.match(value))
        if variable.startswith("TASKMILL_") and value and not foreign:
            name = variable.removeprefix("TASKMILL_")
            found[name.lower() if name.isupper() else variable] = _Given(value, _ENVIRONMENT, variable, "")
    return found


def _from_file(path: Path) -> dict[str, _Given]:
    try:
        text = path.read_text(encoding="utf-8")
        table = tomllib.loads(text)
    except OSError as error:
        raise InvalidSettings(
            f"cannot read {path}: {error.strerror}", code="unreadable_file", field="file", hint=f"name a {FILE_NAME} that exists and may be read"
        ) from None
    except UnicodeDecodeError as error:
        raise InvalidSettings(f"{path} is not UTF-8 at byte {error.start}", code="invalid_file", field="file", hint="save it as UTF-8") from None
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise InvalidSettings(
            f"{path} is not TOML: {_toml_reason(error)}",
            code="invalid_file",
            field="file",
            hint='a line is: name = value, with text in "quotes"; each name once',
        ) from None
    return {name: _Given(value, _FILE, name, f"{path} line {_line_of(text, name)}") for name, value in table.items()}


def _toml_reason(error: Exception) -> str:
    """tomllib calls a key that occurs twice an attempt to overwrite."""
    return str(error).replace("Cannot overwrite a value", "a key occurs twice") if isinstance(error, tomllib.TOMLDecodeError) else "nested too deep"


def _line_of(text: str, name: str) -> int:
    written = re.compile(rf"""\s*\[*\s*["']?{re.escape(name)}["']?\s*[=.\]]""")
    return next((number for number, line in enumerate(text.splitlines(), 1) if written.match(line)), 1)


_ENGINE_NAME = re.compile(r"(?:sqlite|postgres|postgresql|redis|kafka|database|db|engine|store|broker)(?:_url|_dsn|_uri|_path)?")


def _known(source: dict[str, _Given], sources: Iterable[dict[str, _Given]]) -> dict[str, _Given]:
    for name, given in source.items():
        if name in _TABLE:
            continue
        if _ENGINE_NAME.fullmatch(name):
            named = {other for every in sources for other in every if other == "url" or _ENGINE_NAME.fullmatch(other)}
            if len(named) > 1:
                given.refuse("two_engines", f"two engines are configured: {' and '.join(sorted(named))}", "keep one, under url")
            given.refuse("unknown_setting", f"there is no setting {name}", 'the scheme of url names the engine: url = "sqlite:///taskmill.db"')
        near = nearest(name.removeprefix("TASKMILL_"), _TABLE)
        shown = f"TASKMILL_{near.upper()}" if near and given.rank == _ENVIRONMENT else near
        given.refuse(
            "unknown_setting", f"there is no setting {given.field[:80]}", f"did you mean {shown}?" if shown else "`taskmill config show` lists all settings"
        )
    return source


# Values


def _read_duration(given: _Given, setting: Setting) -> int:
    value = given.value
    if isinstance(value, str) and re.fullmatch(r"\d+(?:\.\d+)?", value, re.ASCII):
        value = float(value)
    if not isinstance(value, (str, int, float, timedelta)):
        given.refuse("invalid_value", "it is not a duration", 'write "90s", "10m", or a number of seconds')
    try:
        micros = duration(value, minimum=setting.minimum)
    except InvalidInput as error:
        given.refuse("invalid_value", error.message[:200], error.hint)
    if micros > setting.maximum:
        given.refuse("invalid_value", f"{str(given.value)[:40]!r} is too long", f"at most {format_duration(setting.maximum)}")
    return micros


def _read_integer(given: _Given, setting: Setting) -> int:
    value = given.value
    if isinstance(value, str) and re.fullmatch(r"\s*[+-]?\d{1,18}\s*", value, re.ASCII):
        value = int(value)
    hint = f"a whole number from {setting.minimum} to {setting.maximum}"
    if isinstance(value, bool) or not isinstance(value, int):
        given.refuse("invalid_value", f"{str(given.value)[:40]!r} is not a whole number", hint)
    if not setting.minimum <= value <= setting.maximum:
        given.refuse("invalid_value", f"{value if value.bit_length() < 64 else 'it'} is out of range", hint)
    return value


_SIZES = {"": 1, "B": 1, "KiB": 1024, "MiB": 1024 * 1024}


def _read_bytes(given: _Given, setting: Setting) -> int:
    sized = re.fullmatch(r"\s*(\d{1,9})\s*(B|KiB|MiB)\s*", given.value, re.ASCII) if isinstance(given.value, str) else None
    if sized is None:
        return _read_integer(given, setting)
    return _read_integer(msgspec.structs.replace(given, value=int(sized[1]) * _SIZES[sized[2]]), setting)


_BOOLEANS = {"true": True, "yes": True, "on": True, "1": True, "false": False, "no": False, "off": False, "0": False}


def _read_boolean(given: _Given, setting: Setting) -> bool:
    found = given.value if isinstance(given.value, bool) else _BOOLEANS.get(given.value.strip().lower()) if isinstance(given.value, str) else None
    if found is None:
        given.refuse("invalid_value", f"{str(given.value)[:40]!r} is neither true nor false", "write true or false")
    return found


def _read_choice(given: _Given, setting: Setting) -> str:
    text = _read_text(given, setting).lower()
    if text not in setting.choices:
        near = nearest(text, setting.choices)
        listed = ", ".join(setting.choices)
        given.refuse("invalid_value", f"{text[:40]!r} is not one of {listed}", f"did you mean {near}?" if near else f"one of {listed}")
    return text


def _read_name(given: _Given, setting: Setting) -> str:
    text = _read_text(given, setting)
    if not re.fullmatch(r"[a-z0-9][a-z0-9_.-]{0,127}", text, re.ASCII):
        given.refuse("invalid_value", f"{text[:40]!r} is not a name", "small letters, digits, _ . and -, at most 128, the first a letter or digit")
    return text


def _read_text(given: _Given, _: Setting) -> str:
    text = given.value
    if not isinstance(text, str) or not text.strip() or not text.isprintable():
        given.refuse("invalid_value", "it is not a line of text", "write text without control characters")
    return text.strip()


def _read_secret(given: _Given, setting: Setting) -> Secret:
    return given.value if isinstance(given.value, Secret) else Secret(_read_text(given, setting))


def _read_url(given: _Given, setting: Setting) -> Secret:
    if isinstance(given.value, list):
        given.refuse("two_engines", "url is one store, not a list", "keep one; several PostgreSQL or Redis hosts go into one URL, separated by commas")
    text = given.value.reveal() if isinstance(given.value, Secret) else _read_text(given, setting)
    try:
        url_parameters(text)
    except InvalidSettings as error:
        given.refuse(error.code, error.message, error.hint)
    return Secret(text, mask_url(text))


_READERS: dict[Kind, Callable[[_Given, Setting], object]] = {
    "duration": _read_duration,
    "integer": _read_integer,
    "bytes": _read_bytes,
    "boolean": _read_boolean,
    "choice": _read_choice,
    "name": _read_name,
    "text": _read_text,
    "secret": _read_secret,
    "url": _read_url,
}


def _spread_url(given: dict[str, _Given], values: dict[str, object]) -> None:
    """`?durability=local` in the URL is the setting durability, as strong as the URL itself; the URL goes on without it."""
    url = values.get("url")
    if not isinstance(url, Secret):
        return
    text = url.reveal()
    shared = _SHARED_PARAMETERS[engine_kind(text)]
    for name, written in url_parameters(text).items():
        if name not in shared:
            continue
        inner = msgspec.structs.replace(given["url"], value=written, field=f"{given['url'].field} ({name})")
        value = _READERS[_TABLE[name].kind](inner, _TABLE[name])
        other = given.get(name)
        if other and other.rank == inner.rank and values[name] != value:
            other.refuse("contradiction", f"{name} is {_written(values[name], _TABLE[name].kind)} here and {written[:40]} in the URL", "say it once")
        if not other or other.rank < inner.rank:
            given[name], values[name] = inner, value
    if engine_kind(text) == "redis":
        values.setdefault("durability", "local")  # what such a server gives unless it is asked for more
    rest = _without(text, shared)
    values["url"] = Secret(rest, mask_url(rest))


_ORIGIN = re.compile(r"https?://(\[[0-9a-f:.]+\]|[^\s/:@*?#]+)(:[0-9]{1,5})?/?", re.IGNORECASE)
_HOST = re.compile(r"\[[0-9a-f:.]+\]|[^\s/:@*?#\[\]]+", re.IGNORECASE)


def _check_list(text: str, form: re.Pattern[str], name: str, given: Mapping[str, _Given], wrong: str, hint: str) -> None:
    """What no request could have would shut everybody out without a word."""
    for each in filter(None, map(str.strip, text.split(","))):
        if not form.fullmatch(each):
            one = given.get(name)
            place = f", in {one.place}" if one and one.place else ""
            raise InvalidSettings(f"{each!r:.80} {wrong}{place}", code="invalid_value", field=one.field if one else name, hint=hint)


def _check(settings: Settings, given: Mapping[str, _Given]) -> None:
    """What the settings must be to one another; the refusal is put to the one that somebody wrote."""

    def need(holds: bool, field: str, other: str, message: str, hint: str) -> None:
        if not holds:
            one = given.get(field) or given.get(other)
            place = f", in {one.place}" if one and one.place else ""
            raise InvalidSettings(message + place, code="contradiction", field=one.field if one else field, hint=hint)

    beat, lease, term, every, remote = map(format_duration, (settings.beat, settings.lease, settings.term, settings.recovery_interval, settings.remote_lease))
    late = "late beats would lose it; at least {} × beat".format
    need(settings.lease >= 3 * settings.beat, "lease", "beat", f"a lease of {lease} is shorter than three beats of {beat}", late(3))
    need(settings.term >= 2 * settings.beat, "term", "beat", f"a term of {term} is shorter than two beats of {beat}", late(2))
    need(
        settings.recovery_interval < settings.lease,
        "recovery_interval",
        "lease",
        f"recovery every {every} is not less than a lease of {lease}",
        "look more often",
    )
    need(settings.remote_lease >= settings.lease, "remote_lease", "lease", f"a remote lease of {remote} is shorter than a lease of {lease}", "at least lease")
    _check_list(
        settings.cors_origins,
        _ORIGIN,
        "cors_origins",
        given,
        "is no origin",
        "write https://app.example.com, with its port where it has one and without a path",
    )
    _check_list(
        settings.allowed_origins,
        _ORIGIN,
        "allowed_origins",
        given,
        "is no origin",
        "write https://app.example.com, with its port where it has one and without a path",
    )
    _check_list(
        settings.allowed_hosts, _HOST, "allowed_hosts", given, "is no name of a host", "write api.example.com or [2001:db8::1], without a scheme and a port"
    )
    need(settings.port != settings.grpc_port, "grpc_port", "port", f"port and grpc_port are both {settings.port}", "give them different ports")
    need((settings.tls_cert is None) == (settings.tls_key is None), "tls_cert", "tls_key", "a certificate goes with its key", "set tls_cert and tls_key")
    need(settings.tls_client_ca is None or settings.tls_cert is not None, "tls_client_ca", "tls_cert", "mTLS needs TLS", "set tls_cert and tls_key too")
    alone = engine_kind(settings.url) == "sqlite"
    need(not (alone and settings.durability == "replicated"), "durability", "url", "SQLite has no replicas", "durability is fsync or local there")


def _exposed(path: Path | None, given: Mapping[str, _Given], settings: Settings) -> tuple[str, ...]:
    """A secret in a file that others may read."""
    in_file = [
        name for name, one in given.items() if one.rank == _FILE and (name == "api_key" or (name == "url" and str(settings.url) != settings.url.reveal()))
    ]
    if path is None or not in_file or not path.stat().st_mode & (stat.S_IRGRP | stat.S_IROTH):
        return ()
    return (f"{path} holds {' and '.join(in_file)} and others may read it: chmod 600 {path}, or use the environment",)


# The URL


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach it."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def engine_kind(url: str | Secret) -> EngineKind:
    """Which engine a URL names."""
    scheme, colon, rest = _text(url).partition("://")
    if re.search(r"[,;\s]\s*[a-z]+://", rest.partition("?")[0]):
        _refuse_url("two_engines", "two engines are configured: the URL holds several", "keep one")
    if not colon:
        _refuse_url("unknown_engine", "the URL has no scheme", "write sqlite:///file.db, postgresql://…, redis://… or kafka://…")
    if scheme not in _SCHEMES:
        near = nearest(scheme.partition("+")[0], _SCHEMES)
        _refuse_url(
            "unknown_engine", f"there is no engine {scheme[:40]!r}", f"did you mean {near}://?" if near else "sqlite, postgresql, redis, rediss or kafka"
        )
    return _SCHEMES[scheme]


def url_parameters(url: str | Secret) -> dict[str, str]:
    """What stands behind the `?` of a URL; unknown and repeated names are refused."""
    kind = engine_kind(url)
    known = _OWN_PARAMETERS[kind] + _SHARED_PARAMETERS[kind]
    query = _text(url).partition("?")[2]
    if kind != "kafka" and "@" in query:
        hint = "percent-encode the whole URL of the archive" if "archive=" in query else "a password with ? & # / or @ in it must be percent-encoded"
        _refuse_url("invalid_value", "an @ stands behind the ? of the URL", hint)
    found: dict[str, str] = {}
    for name, value in parse_qsl(query, keep_blank_values=True):
        if name not in known:
            near = nearest(name, known)
            _refuse_url(
                "unknown_parameter",
                f"there is no URL parameter {name[:40] if name.isidentifier() else '***'!r} for {kind}",
                f"did you mean {near}?" if near else f"known are {', '.join(known)}",
            )
        if name in found:
            _refuse_url("invalid_value", f"the URL parameter {name} occurs twice", "say it once")
        found[name] = value
    return found


def sqlite_path(url: str | Secret, base: Path) -> Path:
    """The file that an SQLite URL names, absolute; `MEMORY` for none. A relative path starts at `base`."""
    url_parameters(url)
    rest = unquote(_text(url).partition("://")[2].partition("?")[0])
    if rest in {":memory:", "/:memory:"}:
        return MEMORY
    if not rest.startswith("/"):
        _refuse_url(
            "invalid_value",
            "an SQLite URL has three slashes before a relative path and four before an absolute one",
            f"write sqlite:///{rest[:80] or 'taskmill.db'}",
        )
    path = rest[1:]
    if not path or path.endswith("/") or not path.isprintable():
        _refuse_url("invalid_value", "the SQLite URL names no file", "write sqlite:///taskmill.db")
    if path.startswith("~"):
        _refuse_url("invalid_value", "~ is not expanded in a URL", "write the whole path, with four slashes: sqlite:////home/…")
    return Path(os.path.normpath(base.absolute() / path))


def mask_url(url: str | Secret) -> str:
    """A URL fit for logs: passwords are `***`, in nested URLs too; where a malformed one leaves doubt, more is masked, not less."""
    text = _text(url)
    if text.startswith("sqlite:"):
        return re.sub(r"(?s)^sqlite:(?!///).*@", "sqlite://***@", text)
    if re.match("(?:rediss?|kafka)://[^?]*[?]", text):
        return _mask_query(text)
    front = re.sub(r"(?s)^(.*?://[^:@]*):.*@", r"\1:***@", text)
    front = re.sub(r"(?s)^(rediss?://)[^:@]*@", r"\1***@", front)  # there a name alone is as likely a password without its colon
    return re.sub(r"(?i)([?&][^=&]*(?:password|passwd|secret|token|key)[^=&]*)=[^&]*", r"\1=***", front)


_SURE_FRONT = re.compile(r"(?s)((?:rediss?|kafka)://(?:[^@?]*@)?[^:@?/,]*(?::\d*)?(?:,[^:@?/,]*(?::\d*)?)*(?:/[^?:@]*)?)\?(.*)")


def _mask_query(text: str) -> str:
    """A URL of Redis or Kafka with a query: URLs of other stores lie in it, passwords and all. Where a part is not what it seems, nothing is shown."""
    sure = _SURE_FRONT.fullmatch(text)
    kind = _SCHEMES[text.partition("://")[0]]
    parts = [part.partition("=") for part in sure[2].split("&")] if sure else []
    if not sure or any(name not in _OWN_PARAMETERS[kind] + _SHARED_PARAMETERS[kind] for name, _, _ in parts):
        return re.sub(r"(?s)^(\w+://).*", r"\1***", text)
    shown = [_mask_parameter(f"{name}={value}") if name in _STORES or re.search("[@:%]", value) else f"{name}={value}" for name, _, value in parts]
    return f"{mask_url(sure[1])}?{'&'.join(shown)}"


_STORES = ("state", "archive")


def _mask_parameter(part: str) -> str:
    name, equals, value = part.partition("=")
    plain = unquote(value)
    if "://" in plain:
        return f"{name}={mask_url(plain)}"
    return f"{name}={value}" if name == "durability" and equals else "***"


def _without(url: str, names: Iterable[str]) -> str:
    front, _, query = url.partition("?")
    kept = "&".join(part for part in query.split("&") if part.partition("=")[0] not in names)
    return f"{front}?{kept}" if kept else front


def _text(url: str | Secret) -> str:
    return url.reveal() if isinstance(url, Secret) else url


def _refuse_url(code: str, message: str, hint: str) -> NoReturn:
    raise InvalidSettings(message, code=code, field="url", hint=hint)
