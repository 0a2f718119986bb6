"""What a URL of PostgreSQL says, and how a wrong one is told: in one line that never holds the password."""

from __future__ import annotations

import pytest

from taskmill.clock import SECOND
from taskmill.config import Secret, load
from taskmill.engine import Durability
from taskmill.engines.postgres.target import Target, parse, quoted
from taskmill.errors import InvalidSettings

PASSWORD = "s3cr3t"


def refusal(url: str) -> InvalidSettings:
    with pytest.raises(InvalidSettings) as caught:
        parse(url)
    assert PASSWORD not in str(caught.value) + repr(caught.value)
    assert "\n" not in str(caught.value)
    assert caught.value.hint
    return caught.value


def test_what_a_whole_url_says() -> None:
    url = "postgresql://me:p%40ss%23w%2F%25@db.example:6000/shop%20one?schema=tasks&pool=3&durability=local&busy_timeout=5s&application_name=mill"
    assert parse(url) == Target(
        hosts=(("db.example", 6000),),
        user="me",
        password=Secret("p@ss#w/%"),
        database="shop one",
        schema="tasks",
        durability=Durability.LOCAL,
        pool=3,
        busy_timeout=5 * SECOND,
        application_name="mill",
    )


def test_what_a_short_url_says() -> None:
    target = parse("postgres:///shop", durability=Durability.REPLICATED, busy_timeout=7)
    assert target == Target(database="shop", durability=Durability.REPLICATED, busy_timeout=7)
    assert (target.schema, target.pool, target.hosts, target.user, target.password) == ("taskmill", 10, (), None, None)


@pytest.mark.parametrize(
    ("url", "hosts"),
    [
        ("postgresql://h/d", (("h", 5432),)),
        ("postgresql://a:1,b,c:3/d", (("a", 1), ("b", 5432), ("c", 3))),
        ("postgresql://a,b/d?port=7", (("a", 7), ("b", 7))),
        ("postgresql://[::1]:6000/d", (("::1", 6000),)),
        ("postgresql://u@[::1]/d", (("::1", 5432),)),
        ("postgresql://%2Frun%2Fpostgresql:6000/d", (("/run/postgresql", 6000),)),
        ("postgresql:///d?host=/run/postgresql&port=6000", (("/run/postgresql", 6000),)),
        ("postgresql:///d?host=::1,b", (("::1", 5432), ("b", 5432))),
    ],
)
def test_hosts(url: str, hosts: tuple[tuple[str, int], ...]) -> None:
    target = parse(url)
    assert target.hosts == hosts
    assert target.arguments()["host"] == [host for host, _ in hosts]
    assert target.arguments()["port"] == [port for _, port in hosts]


def test_a_colon_in_the_password_needs_no_encoding() -> None:
    assert parse("postgresql://u:a:b@h/d").password == Secret("a:b")


def test_the_password_is_nowhere_but_where_it_is_needed() -> None:
    target = parse(f"postgresql://me:{PASSWORD}@h/d?schema=x")
    assert PASSWORD not in f"{target} {target!r}"
    assert target.arguments()["password"] == PASSWORD
    assert str(target) == "postgresql://me@h/d?schema=x"


def test_its_text_can_be_read_again() -> None:
    for url in ("postgresql://me@a:1,[::1]:2/d", "postgresql://%2Frun:6000/a%20b", "postgresql:///d?schema=x"):
        assert str(parse(url)) == url


def test_certificates_travel_as_asyncpg_takes_them() -> None:
    target = parse("postgresql://h/d?sslmode=verify-full&sslrootcert=/etc/ca.pem&sslcert=c.pem&sslkey=k.pem&target_session_attrs=read-write")
    assert target.arguments()["dsn"] == "postgresql:///?sslmode=verify-full&sslrootcert=%2Fetc%2Fca.pem&sslcert=c.pem&sslkey=k.pem"
    assert target.arguments()["target_session_attrs"] == "read-write"


@pytest.mark.parametrize(
    "url",
    [
        f"postgresql://u:{PASSWORD}#x@h/d",
        f"postgresql://u:{PASSWORD}@x@h/d",
        f"postgresql://u:{PASSWORD}/x@h/d",
        f"postgresql://u:{PASSWORD}?x@h/d",
        f"postgresql://u:{PASSWORD}&x?pool=3@h/d",
        f"postgresql://u:{PASSWORD}%zz@h/d",
        f"postgresql://u:{PASSWORD}%@h/d",
    ],
)
def test_a_sign_in_the_password_that_is_not_encoded(url: str) -> None:
    error = refusal(url)
    assert (error.code, error.field) == ("invalid_value", "url")
    assert "percent-encode" in (error.hint or "")


@pytest.mark.parametrize(
    ("url", "code", "says"),
    [
        ("postgresql://h", "invalid_value", "names no database"),
        ("postgresql://h/", "invalid_value", "names no database"),
        (f"postgresql://h/{'d' * 64}", "invalid_value", "too long"),
        ("postgresql://h:0/d", "invalid_value", "port"),
        ("postgresql://h:65536/d", "invalid_value", "port"),
        ("postgresql://h:x/d", "invalid_value", "host"),
        ("postgresql://::1/d", "invalid_value", "brackets"),
        ("postgresql://a,,b/d", "invalid_value", "host"),
        ("postgresql://h/d?port=x", "invalid_value", "port"),
        ("postgresql:///d?port=6000", "invalid_value", "no host"),
        ("postgresql://h/d?host=x", "contradiction", "say it once"),
        ("postgresql://h/a b", "invalid_value", "space"),
        ("postgresql://h/a\tb", "invalid_value", "control"),
        ("postgresql://h/a%00b", "invalid_value", "%00"),
        ("postgresql://h/d?schema=Tasks", "invalid_value", "'Tasks' is not a name for a schema"),
        ("postgresql://h/d?schema=", "invalid_value", "schema"),
        ("postgresql://h/d?schema=1a", "invalid_value", "schema"),
        ("postgresql://h/d?schema=a-b", "invalid_value", "schema"),
        ('postgresql://h/d?schema=a"b', "invalid_value", "schema"),
        ("postgresql://h/d?schema=pg_tasks", "invalid_value", "schema"),
        ("postgresql://h/d?schema=information_schema", "invalid_value", "schema"),
        (f"postgresql://h/d?schema={'a' * 64}", "invalid_value", "schema"),
        ("postgresql://h/d?pool=0", "invalid_value", "pool"),
        ("postgresql://h/d?pool=1001", "invalid_value", "pool"),
        ("postgresql://h/d?pool=many", "invalid_value", "pool"),
        ("postgresql://h/d?durability=paper", "invalid_value", "durability"),
        ("postgresql://h/d?busy_timeout=soon", "invalid_value", "duration"),
        ("postgresql://h/d?sslmode=sure", "invalid_value", "sslmode"),
        ("postgresql://h/d?target_session_attrs=best", "invalid_value", "target_session_attrs"),
        ("postgresql://h/d?shema=x", "unknown_parameter", "did you mean schema"),
        (f"postgresql://h/d?password={PASSWORD}", "unknown_parameter", "password"),
        ("postgresql://h/d?pool=3&pool=4", "invalid_value", "twice"),
        ("sqlite:///x.db", "unknown_engine", "not a URL of PostgreSQL"),
        ("postgresq://h/d", "unknown_engine", "did you mean postgresql"),
        ("", "unknown_engine", "no scheme"),
    ],
)
def test_a_wrong_url(url: str, code: str, says: str) -> None:
    error = refusal(url)
    assert error.code == code
    assert says in str(error)


def test_a_schema_s_name_as_long_as_postgresql_takes_it() -> None:
    assert parse(f"postgresql://h/d?schema=_{'a' * 62}").schema == "_" + "a" * 62


def test_the_settings_take_what_the_url_says() -> None:
    loaded = load({"url": f"postgresql://me:{PASSWORD}@h/d?schema=x&pool=4&busy_timeout=9s&durability=local"}, {})
    assert (loaded.settings.busy_timeout, loaded.settings.durability) == (9 * SECOND, "local")
    target = parse(loaded.settings.url, durability=Durability(loaded.settings.durability), busy_timeout=loaded.settings.busy_timeout)
    assert (target.schema, target.pool, target.busy_timeout, target.durability) == ("x", 4, 9 * SECOND, Durability.LOCAL)


def test_a_name_is_quoted() -> None:
    assert quoted('a"b') == '"a""b"'
