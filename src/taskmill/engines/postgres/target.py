"""What a URL of PostgreSQL says: the server, who asks it, the schema, and how far an acknowledged write must have come.

    postgresql://user:password@host:port,host:port/database?schema=taskmill&pool=10&durability=fsync&busy_timeout=30s&sslmode=verify-full

A host is a name, an address, `[::1]`, or a folder with the server's socket, `%2Frun%2Fpostgresql` or `?host=/run/postgresql`. What a URL leaves out
(user, password, host) is found as psql finds it. Characters with a meaning in URLs are percent-encoded in the password; a URL in which one
of them is not is refused with the way to write it, because what would be read instead is another host, or half of a password.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, NoReturn
from urllib.parse import quote, unquote, urlencode

from msgspec import Struct

from taskmill.clock import SECOND, duration
from taskmill.config import Secret, engine_kind, url_parameters
from taskmill.engine import Durability
from taskmill.errors import InvalidInput, InvalidSettings

__all__ = ["PORT", "SCHEMA", "Target", "parse", "quoted"]

PORT = 5432
SCHEMA = "taskmill"
POOL = 10
LARGEST_POOL = 1_000
LONGEST_NAME = 63
"""PostgreSQL cuts longer names without a word, and two stores would become one."""

SSL_MODES = ("disable", "allow", "prefer", "require", "verify-ca", "verify-full")
SESSIONS = ("any", "primary", "standby", "read-write", "read-only", "prefer-standby")
MEANINGFUL = {"#": "%23", "@": "%40", "/": "%2F", "?": "%3F", "&": "%26", "%": "%25"}


class Target(Struct, frozen=True, kw_only=True):
    """Where a store is and how it is used. Its text names it for people, without the password."""

    hosts: tuple[tuple[str, int], ...] = ()
    user: str | None = None
    password: Secret | None = None
    database: str
    schema: str = SCHEMA
    durability: Durability = Durability.FSYNC
    pool: int = POOL
    busy_timeout: int = 30 * SECOND
    application_name: str = "taskmill"
    ssl: tuple[tuple[str, str], ...] = ()
    target_session_attrs: str | None = None

    def __str__(self) -> str:
        user = f"{quote(self.user, safe='')}@" if self.user else ""
        schema = "" if self.schema == SCHEMA else f"?schema={self.schema}"
        return f"postgresql://{user}{','.join(map(_host, self.hosts))}/{quote(self.database, safe='')}{schema}"

    @property
    def patience(self) -> int:
        """Microseconds to wait for a connection, or for the answer to one statement."""
        return max(self.busy_timeout, SECOND)

    def arguments(self) -> dict[str, Any]:
        """What asyncpg's `connect` is given. Certificates it takes from a URL only."""
        given: dict[str, Any] = {"dsn": f"postgresql:///?{urlencode(self.ssl)}", "database": self.database, "user": self.user}
        if self.hosts:
            given |= {"host": [host for host, _ in self.hosts], "port": [port for _, port in self.hosts]}
        if self.password is not None:
            given["password"] = self.password.reveal()
        if self.target_session_attrs is not None:
            given["target_session_attrs"] = self.target_session_attrs
        return given | {"timeout": self.patience / SECOND}


def _host(place: tuple[str, int]) -> str:
    host, port = place
    shown = f"[{host}]" if ":" in host else quote(host, safe="")
    return shown if port == PORT else f"{shown}:{port}"


def quoted(name: str) -> str:
    """A name as SQL takes it, whatever is in it."""
    return '"' + name.replace('"', '""') + '"'


def parse(url: str | Secret, *, durability: Durability = Durability.FSYNC, busy_timeout: int = 30 * SECOND) -> Target:
    """What a URL says; what it says itself goes before the arguments."""
    text = url.reveal() if isinstance(url, Secret) else url
    _check_text(text)
    if engine_kind(text) != "postgres":
        _refuse("unknown_engine", "it is not a URL of PostgreSQL", "write postgresql://user@host/database")
    parameters = url_parameters(text)
    front = text.partition("://")[2].partition("?")[0]
    authority, _, path = front.partition("/")
    if "@" in path:
        _refuse_password("an @ stands behind the first / of the URL")
    userinfo, at, places = authority.rpartition("@")
    user, password = _user(userinfo) if at else (None, None)
    return Target(
        hosts=_hosts(_place(places, parameters), parameters.get("port")),
        user=user,
        password=password,
        database=_database(path),
        schema=_schema(parameters.get("schema", SCHEMA)),
        durability=_durability(parameters.get("durability", durability)),
        pool=_pool(parameters.get("pool", str(POOL))),
        busy_timeout=_busy_timeout(parameters["busy_timeout"]) if "busy_timeout" in parameters else busy_timeout,
        application_name=parameters.get("application_name") or "taskmill",
        ssl=tuple(_ssl(parameters)),
        target_session_attrs=_one_of(parameters, "target_session_attrs", SESSIONS),
    )


# Parts


def _check_text(text: str) -> None:
    if not text.isprintable() or " " in text:
        _refuse("invalid_value", "there is a space or a control character in the URL", "write a space in a password as %20")
    if "#" in text:
        _refuse_password("there is a # in the URL")
    if re.search(r"%(?![0-9A-Fa-f]{2})", text):
        _refuse_password("a % in the URL is not followed by two hexadecimal digits")
    if "\x00" in unquote(text):
        _refuse("invalid_value", "there is a %00 in the URL", "no name and no password of PostgreSQL has it")


def _user(userinfo: str) -> tuple[str | None, Secret | None]:
    if "@" in userinfo:
        _refuse_password("there are two @ before the host of the URL")
    user, colon, password = userinfo.partition(":")
    return unquote(user) or None, Secret(unquote(password)) if colon and password else None


def _place(places: str, parameters: dict[str, str]) -> str:
    """Where the server is: in front of the path or, as with psql, in a parameter."""
    named = parameters.get("host")
    if named is None:
        return places
    if places:
        _refuse("contradiction", "the host stands in front of the path and in ?host= too", "say it once")
    return ",".join(f"[{host}]" if ":" in host else quote(host, safe="") for host in named.split(","))


def _hosts(places: str, port: str | None) -> tuple[tuple[str, int], ...]:
    if not places:
        if port is not None:
            _refuse("invalid_value", "the URL has a port and no host", "write postgresql://user@host:port/database")
        return ()
    standard = PORT if port is None else _port(port)
    return tuple(_one_host(place, standard) for place in places.split(","))


def _one_host(place: str, standard: int) -> tuple[str, int]:
    found = re.fullmatch(r"(?:\[(?P<six>[0-9A-Fa-f:.]+(?:%25\w+)?)\]|(?P<host>[^:\[\]]+))(?::(?P<port>\d*))?", place)
    if found is None:
        _refuse_password("the host of the URL cannot be read; an address of IPv6 stands in brackets: [::1]")
    port = _port(found["port"]) if found["port"] else standard
    return unquote(found["six"] or found["host"]), port


def _port(text: str) -> int:
    if not re.fullmatch(r"\d{1,5}", text, re.ASCII) or not 1 <= int(text) <= 65_535:
        _refuse("invalid_value", "the port of the URL is not one", "a number from 1 to 65535")
    return int(text)


def _database(path: str) -> str:
    name = unquote(path)
    if not name:
        _refuse("invalid_value", "the URL names no database", "write postgresql://user@host/database")
    if len(name.encode()) > LONGEST_NAME:
        _refuse("invalid_value", "the name of the database is too long", f"at most {LONGEST_NAME} bytes")
    return name


def _schema(name: str) -> str:
    if not re.fullmatch(rf"[a-z_][a-z0-9_]{{0,{LONGEST_NAME - 1}}}", name, re.ASCII) or name.startswith("pg_") or name == "information_schema":
        hint = f"small letters, digits and _, at most {LONGEST_NAME}, the first no digit; pg_… is PostgreSQL's own"
        raise InvalidSettings(f"{name[:40]!r} is not a name for a schema", code="invalid_value", field="schema", hint=hint)
    return name


def _durability(word: str) -> Durability:
    if word not in tuple(Durability):
        raise InvalidSettings(f"there is no durability {word[:40]!r}", code="invalid_value", field="durability", hint="fsync, local or replicated")
    return Durability(word)


def _pool(text: str) -> int:
    if not re.fullmatch(r"\d{1,4}", text, re.ASCII) or not 1 <= int(text) <= LARGEST_POOL:
        hint = f"connections of one process: a whole number from 1 to {LARGEST_POOL}"
        raise InvalidSettings(f"{text[:40]!r} is not a size for a pool", code="invalid_value", field="pool", hint=hint)
    return int(text)


def _busy_timeout(text: str) -> int:
    try:
        return duration(text, field="busy_timeout")
    except InvalidInput as error:
        raise InvalidSettings(error.message[:200], code="invalid_value", field="busy_timeout", hint=error.hint) from None


def _ssl(parameters: dict[str, str]) -> Iterator[tuple[str, str]]:
    _one_of(parameters, "sslmode", SSL_MODES)
    return ((name, parameters[name]) for name in ("sslmode", "sslrootcert", "sslcert", "sslkey") if parameters.get(name))


def _one_of(parameters: dict[str, str], name: str, words: tuple[str, ...]) -> str | None:
    word = parameters.get(name)
    if word is not None and word not in words:
        raise InvalidSettings(f"there is no {name} {word[:40]!r}", code="invalid_value", field=name, hint=f"one of {', '.join(words)}")
    return word


def _refuse_password(message: str) -> NoReturn:
    signs = ", ".join(f"{sign} as {code}" for sign, code in MEANINGFUL.items())
    _refuse("invalid_value", message, f"percent-encode the password: {signs}")


def _refuse(code: str, message: str, hint: str) -> NoReturn:
    raise InvalidSettings(message, code=code, field="url", hint=hint)
