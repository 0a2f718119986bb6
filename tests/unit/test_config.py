"""config: precedence with origins, refusals that name their place, and secrets that never print."""

from __future__ import annotations

import copy
import io
import os
import pickle
import traceback
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from urllib.parse import quote

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from taskmill.clock import DAY, HOUR, MINUTE, SECOND
from taskmill.config import FILE_NAME, MEMORY, Loaded, Secret, Settings, engine_kind, find_file, load, mask_url, reference, sqlite_path, url_parameters
from taskmill.errors import InvalidSettings


def refusal(call: Callable[[], object]) -> InvalidSettings:
    with pytest.raises(InvalidSettings) as caught:
        call()
    return caught.value


def written(folder: Path, text: str) -> Path:
    path = folder / FILE_NAME
    path.write_text(text, encoding="utf-8")
    path.chmod(0o600)
    return path


def loaded(folder: Path, text: str = "", environ: dict[str, str] | None = None, **arguments: object) -> Loaded:
    return load(arguments, environ or {}, written(folder, text))


def test_the_defaults(tmp_path: Path) -> None:
    found = load({}, {}, folder=tmp_path)
    settings = found.settings
    assert settings.url.reveal() == "sqlite:///taskmill.db"
    assert (settings.beat, settings.lease, settings.term, settings.recovery_interval) == (SECOND, 4 * SECOND, 4 * SECOND, SECOND // 2)
    assert (settings.grace_period, settings.timeout, settings.busy_timeout) == (20 * SECOND, HOUR, 30 * SECOND)
    assert (settings.concurrency, settings.max_crashes, settings.max_retries, settings.payload_limit) == (10, 3, 3, 262_144)
    assert (settings.history_retention, settings.dead_retention, settings.dedupe_window) == (14 * DAY, 14 * DAY, 72 * HOUR)
    assert (settings.port, settings.grpc_port, settings.durability) == (8080, 9090, "fsync")
    assert set(found.origins.values()) == {"default"}
    assert found.file is None


def test_each_source_goes_before_the_next(tmp_path: Path) -> None:
    text = 'timeout = "1m"\nconcurrency = 2\nlog_level = "error"\n'
    found = loaded(tmp_path, text, {"TASKMILL_TIMEOUT": "2m", "TASKMILL_CONCURRENCY": "3", "HOME": "/"}, timeout=timedelta(minutes=3), port=None)
    assert (found.settings.timeout, found.settings.concurrency, found.settings.log_level) == (3 * MINUTE, 3, "error")
    assert found.origins["timeout"] == "argument timeout"
    assert found.origins["concurrency"] == "TASKMILL_CONCURRENCY"
    assert found.origins["log_level"] == f"{tmp_path / FILE_NAME} line 3"
    assert found.origins["port"] == "default"


def test_the_file_is_searched_upward(tmp_path: Path) -> None:
    below = tmp_path / "a" / "b"
    below.mkdir(parents=True)
    path = written(tmp_path, "concurrency = 7")
    assert find_file(below) == path
    found = load({}, {}, folder=below)
    assert found.settings.concurrency == 7
    assert found.folder(Path("/elsewhere")) == tmp_path


def test_a_file_of_another_user_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = written(tmp_path, "concurrency = 7")
    if os.geteuid() == 0:
        os.chown(path, 65_534, -1)
    else:
        monkeypatch.setattr(os, "geteuid", lambda: path.stat().st_uid + 1)
    error = refusal(lambda: load({}, {}, folder=tmp_path))
    assert (error.code, error.field) == ("foreign_file", "file")
    assert str(path) in str(error)


def test_the_search_ends_at_the_home_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written(tmp_path, "concurrency = 7")
    below = tmp_path / "home" / "project"
    below.mkdir(parents=True)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert find_file(below) is None
    assert find_file(tmp_path) is not None


def test_the_search_stays_on_its_file_system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What lies above a mount may be anyone's."""
    path = written(tmp_path, "concurrency = 7")
    mount = tmp_path / "mount"
    below = mount / "project"
    below.mkdir(parents=True)
    stat_of = Path.stat

    def stat(self: Path, *, follow_symlinks: bool = True) -> os.stat_result:
        found = stat_of(self, follow_symlinks=follow_symlinks)
        return os.stat_result((*found[:2], found.st_dev + 1, *found[3:])) if self.is_relative_to(mount) else found

    assert find_file(below) == path
    monkeypatch.setattr(Path, "stat", stat)
    assert find_file(below) is None


def test_without_a_file_paths_start_at_the_app(tmp_path: Path) -> None:
    assert load({}, {}, folder=tmp_path).folder(Path("/app")) == Path("/app")


@pytest.mark.parametrize(("text", "micros"), [("5m", 5 * MINUTE), ("5", 5 * SECOND), ("0.5", SECOND // 2)])
def test_durations_from_the_environment(tmp_path: Path, text: str, micros: int) -> None:
    assert load({}, {"TASKMILL_TIMEOUT": text}, folder=tmp_path).settings.timeout == micros


@pytest.mark.parametrize(("text", "value"), [("true", True), ("0", False), ("Off", False), ("YES", True)])
def test_booleans_from_the_environment(tmp_path: Path, text: str, value: bool) -> None:
    assert load({}, {"TASKMILL_MAINTENANCE": text}, folder=tmp_path).settings.maintenance is value


def test_sizes_and_empty_variables(tmp_path: Path) -> None:
    found = load({}, {"TASKMILL_PAYLOAD_LIMIT": "64KiB", "TASKMILL_URL": ""}, folder=tmp_path)
    assert found.settings.payload_limit == 65_536
    assert found.origins["url"] == "default"


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("TASKMILL_TIMEOUT", "abc"),
        ("TASKMILL_TIMEOUT", "5m "),
        ("TASKMILL_TIMEOUT", " 5"),
        ("TASKMILL_TIMEOUT", "-5"),
        ("TASKMILL_TIMEOUT", "0"),
        ("TASKMILL_TIMEOUT", "9" * 5_000),
        ("TASKMILL_TIMEOUT", "nan"),
        ("TASKMILL_PORT", "70000"),
        ("TASKMILL_PORT", "0"),
        ("TASKMILL_PORT", "80.5"),
        ("TASKMILL_PORT", "9" * 5_000),
        ("TASKMILL_CONCURRENCY", "0"),
        ("TASKMILL_MAX_RETRIES", "-1"),
        ("TASKMILL_MAX_RETRIES", str(2**31)),
        ("TASKMILL_MAINTENANCE", "perhaps"),
        ("TASKMILL_LOG_LEVEL", "loud"),
        ("TASKMILL_DURABILITY", "fsnyc"),
        ("TASKMILL_NAME", "My App"),
        ("TASKMILL_HOST", "a\nb"),
        ("TASKMILL_PAYLOAD_LIMIT", "2MiB"),
        ("TASKMILL_HISTORY_RETENTION", "4000d"),
    ],
    ids=lambda text: text[:24],
)
def test_a_wrong_value_names_its_variable(tmp_path: Path, variable: str, value: str) -> None:
    error = refusal(lambda: load({}, {variable: value}, folder=tmp_path))
    assert (error.code, error.field) == ("invalid_value", variable)
    assert error.hint
    assert len(str(error)) < 400


@pytest.mark.parametrize(
    "line",
    [
        "timeout = true",
        "timeout = [1]",
        "port = true",
        "port = 80.0",
        "port = 99999999999999999999",
        "maintenance = 1",
        'name = ""',
        "url = 5",
        "timeout = 2026-01-31",
        "api_key = 7",
    ],
)
def test_a_wrong_value_names_its_file_and_line(tmp_path: Path, line: str) -> None:
    error = refusal(lambda: loaded(tmp_path, f"# mine\n\n{line}\n"))
    assert error.code == "invalid_value"
    assert error.field == line.split(" ", maxsplit=1)[0]
    assert f"{tmp_path / FILE_NAME} line 3" in error.message


def test_unknown_settings_are_refused_with_the_nearest(tmp_path: Path) -> None:
    in_file = refusal(lambda: loaded(tmp_path, 'url = "sqlite:///a.db"\n"concurency" = 5\n'))
    assert (in_file.code, in_file.field, in_file.hint) == ("unknown_setting", "concurency", "did you mean concurrency?")
    assert f"{FILE_NAME} line 2" in in_file.message
    table = refusal(lambda: loaded(tmp_path, "beat = 1\n[timeouts]\na = 1\n"))
    assert (table.field, table.hint) == ("timeouts", "did you mean timeout?")
    assert "line 2" in table.message
    variable = refusal(lambda: loaded(tmp_path, environ={"TASKMILL_CONCURENCY": "5"}))
    assert (variable.field, variable.hint) == ("TASKMILL_CONCURENCY", "did you mean TASKMILL_CONCURRENCY?")
    assert refusal(lambda: load({}, {"TASKMILL_timeout": "5"}, folder=tmp_path)).hint == "did you mean TASKMILL_TIMEOUT?"
    assert refusal(lambda: load({"graceperiod": 1}, {}, folder=tmp_path)).hint == "did you mean grace_period?"


def test_variables_of_kubernetes_services_are_not_ours(tmp_path: Path) -> None:
    links = {
        "TASKMILL_PORT": "tcp://10.0.0.1:8080",
        "TASKMILL_SERVICE_HOST": "10.0.0.1",
        "TASKMILL_SERVICE_PORT_HTTP": "8080",
        "TASKMILL_PORT_8080_TCP_ADDR": "10.0.0.1",
    }
    more = {"TASKMILL_API_PORT": "tcp://10.0.0.2:80", "TASKMILL_API_SERVICE_PORT": "80", "TASKMILL_API_PORT_80_TCP": "tcp://10.0.0.2:80"}
    assert load({}, links | more, folder=tmp_path).settings == Settings()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("beat = 1\nbeat = 2\n", "line 2"),
        ("beat = 1\n\tlease 4", "line 2"),
        ("a = {", "TOML"),
        ("beat: 1", "line 1"),
        ("x = !!python/object", "line 1"),
        ("a = " + "[" * 100_000, "TOML"),
    ],
)
def test_a_broken_file_is_refused_with_its_line(tmp_path: Path, text: str, said: str) -> None:
    error = refusal(lambda: loaded(tmp_path, text))
    assert error.code == "invalid_file"
    assert said in error.message
    assert str(tmp_path / FILE_NAME) in error.message


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    assert refusal(lambda: load({}, {}, tmp_path / "missing.toml")).code == "unreadable_file"
    assert refusal(lambda: load({}, {}, tmp_path)).code == "unreadable_file"
    path = tmp_path / FILE_NAME
    path.write_bytes(b'name = "\xff"')
    assert refusal(lambda: load({}, {}, path)).code == "invalid_file"


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        ({"lease": "1s"}, "lease"),
        ({"lease": "2900ms", "recovery_interval": "100ms"}, "lease"),
        ({"beat": "3s"}, "beat"),
        ({"beat": "3s", "lease": "10s"}, "beat"),
        ({"term": 1.5}, "term"),
        ({"recovery_interval": "4s"}, "recovery_interval"),
        ({"lease": "1m", "remote_lease": "30s"}, "remote_lease"),
        ({"remote_lease": "2s"}, "remote_lease"),
        ({"port": 9090}, "port"),
        ({"durability": "replicated"}, "durability"),
        ({"url": "sqlite:///a.db?durability=replicated"}, "url (durability)"),
    ],
)
def test_settings_that_contradict_each_other(tmp_path: Path, arguments: dict[str, object], field: str) -> None:
    error = refusal(lambda: load(arguments, {}, folder=tmp_path))
    assert (error.code, error.field) == ("contradiction", field)
    assert error.hint


@pytest.mark.parametrize(
    "arguments",
    [
        {"cors_origins": "*"},
        {"cors_origins": "app.example.com"},
        {"cors_origins": "https://app.example.com, https://b.example.com/path"},
        {"allowed_origins": "null"},
        {"allowed_hosts": "http://api.example.com"},
        {"allowed_hosts": "10.0.0.7:8080"},
        {"allowed_hosts": "*.example.com"},
    ],
)
def test_a_page_or_a_name_that_no_request_could_have(tmp_path: Path, arguments: dict[str, object]) -> None:
    error = refusal(lambda: load(arguments, {}, folder=tmp_path))
    assert (error.code, error.field) == ("invalid_value", *arguments)
    assert error.hint


def test_pages_and_names(tmp_path: Path) -> None:
    pages, names = "https://App.example.com, http://localhost:5173 ,http://[::1]:8080/,", "api.example.com, 10.0.0.7,[2001:db8::1], localhost,"
    settings = load({"cors_origins": pages, "allowed_hosts": names}, {}, folder=tmp_path).settings
    assert (settings.cors_origins, settings.allowed_hosts) == (pages, names)


def test_a_contradiction_names_the_place_of_what_was_written(tmp_path: Path) -> None:
    assert f"{FILE_NAME} line 1" in refusal(lambda: loaded(tmp_path, 'lease = "1s"')).message
    assert refusal(lambda: loaded(tmp_path, environ={"TASKMILL_LEASE": "1"})).field == "TASKMILL_LEASE"


@pytest.mark.parametrize(
    "text",
    [
        'url = ["sqlite:///a.db", "redis://h"]',
        'url = "sqlite:///a.db, redis://h"',
        'redis_url = "redis://h"\nurl = "sqlite:///a.db"',
        '[redis]\nurl = "redis://h"\n[postgres]\nurl = "postgresql://h"',
    ],
)
def test_two_engines_are_refused(tmp_path: Path, text: str) -> None:
    assert refusal(lambda: loaded(tmp_path, text)).code == "two_engines"


def test_one_engine_under_another_name_is_told_the_right_one(tmp_path: Path) -> None:
    error = refusal(lambda: load({}, {"TASKMILL_REDIS_URL": "redis://:hunter2@h"}, folder=tmp_path))
    assert error.code == "unknown_setting"
    assert "url = " in str(error.hint)
    assert "hunter2" not in str(error)


def test_settings_inside_the_url(tmp_path: Path) -> None:
    found = loaded(tmp_path, 'durability = "fsync"', {"TASKMILL_URL": "sqlite:///a.db?durability=local&busy_timeout=5s"})
    assert (found.settings.durability, found.settings.busy_timeout) == ("local", 5 * SECOND)
    assert found.settings.url.reveal() == "sqlite:///a.db"
    assert found.origins["durability"] == "TASKMILL_URL (durability)"
    over = loaded(tmp_path, "", {"TASKMILL_URL": "sqlite:///a.db?durability=local"}, durability="fsync")
    assert over.settings.durability == "fsync"
    assert refusal(lambda: loaded(tmp_path, 'durability = "fsync"\nurl = "sqlite:///a.db?durability=local"')).code == "contradiction"
    assert refusal(lambda: load({"url": "sqlite:///a.db?durability=loca"}, {}, folder=tmp_path)).field == "url (durability)"


@pytest.mark.parametrize(
    ("url", "kind"),
    [
        ("sqlite:///a", "sqlite"),
        ("sqlite://:memory:", "sqlite"),
        ("postgresql://u@h,i:1/d", "postgres"),
        ("postgres://h", "postgres"),
        ("redis://h", "redis"),
        ("rediss://h", "redis"),
        ("kafka://a:1,b:2?state=redis://h", "kafka"),
    ],
)
def test_the_engine_of_a_url(url: str, kind: str) -> None:
    assert engine_kind(url) == kind
    assert engine_kind(Secret(url)) == kind


@pytest.mark.parametrize(
    ("url", "near"),
    [
        ("postgresq://h", "postgresql://"),
        ("postgresql+asyncpg://h", "postgresql://"),
        ("SQLite:///a", "sqlite://"),
        ("mysql://h", "sqlite"),
        ("taskmill.db", "sqlite:///"),
        ("", "sqlite:///"),
        ("redis:/h", "redis://"),
    ],
)
def test_an_unknown_engine_is_refused_with_the_nearest(url: str, near: str) -> None:
    error = refusal(lambda: engine_kind(url))
    assert (error.code, error.field) == ("unknown_engine", "url")
    assert near in str(error.hint)


def test_url_parameters() -> None:
    assert url_parameters("kafka://a:9092?state=redis://:p%40w@h/0&archive=postgresql://h/d") == {"state": "redis://:p@w@h/0", "archive": "postgresql://h/d"}
    error = refusal(lambda: url_parameters("sqlite:///a?durabilty=local"))
    assert (error.code, error.hint) == ("unknown_parameter", "did you mean durability?")
    assert refusal(lambda: url_parameters("sqlite:///a?durability=local&durability=fsync")).code == "invalid_value"
    assert refusal(lambda: url_parameters("redis://h?schema=x")).code == "unknown_parameter"


@pytest.mark.parametrize(
    ("url", "path"),
    [
        ("sqlite:///taskmill.db", "/base/taskmill.db"),
        ("sqlite:///data/../x.db?durability=local", "/base/x.db"),
        ("sqlite:////var/lib/a.db", "/var/lib/a.db"),
        ("sqlite:///a%20b%3F.db", "/base/a b?.db"),
        ("sqlite:///é.db", "/base/é.db"),
    ],
)
def test_sqlite_paths_are_absolute(url: str, path: str) -> None:
    assert sqlite_path(url, Path("/base")) == Path(path)


def test_sqlite_in_memory() -> None:
    assert sqlite_path("sqlite://:memory:", Path("/base")) == MEMORY
    assert sqlite_path("sqlite:///:memory:", Path("/base")) == MEMORY


def test_a_relative_base_is_made_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert sqlite_path("sqlite:///a.db", Path("sub")) == tmp_path / "sub" / "a.db"


@pytest.mark.parametrize("url", ["sqlite://", "sqlite:///", "sqlite://a.db", "sqlite:///dir/", "sqlite:///~/a.db", "sqlite:///a%00b", "sqlite:///a%0Ab"])
def test_sqlite_urls_that_name_no_file(url: str) -> None:
    error = refusal(lambda: sqlite_path(url, Path("/base")))
    assert (error.code, error.field) == ("invalid_value", "url")
    assert "sqlite:///" in str(error.hint)


@pytest.mark.parametrize(
    ("url", "masked"),
    [
        ("postgresql://u:hunter2@h:5432/d?sslmode=require", "postgresql://u:***@h:5432/d?sslmode=require"),
        ("postgresql://u:hun@ter2@h/d", "postgresql://u:***@h/d"),
        ("postgresql://u:hun/ter2?x@h/d", "postgresql://u:***@h/d"),
        ("postgresql://u@h/d", "postgresql://u@h/d"),
        ("postgresql://h/d?password=hunter2&sslmode=require", "postgresql://h/d?password=***&sslmode=require"),
        ("redis://:hunter2@h/0", "redis://:***@h/0"),
        ("redis://h:6379/0", "redis://h:6379/0"),
        (
            "kafka://u:hunter2@a:1,b:2?state=redis://:hunter2@h&archive=postgresql://u:hunter2@h/d",
            "kafka://u:***@a:1,b:2?state=redis://:***@h&archive=postgresql://u:***@h/d",
        ),
        ("kafka://a:1?state=redis%3A%2F%2F%3Ahunter2%40h", "kafka://a:1?state=redis://:***@h"),
        ("kafka://u:hun?ter2@a:1", "kafka://***"),
        ("kafka://a:1?prefix=x&state=redis%3A%2F%2F%3Ahunter2%40h", "kafka://***"),
        ("kafka://a:1?durability=fsync&archive=postgresql%3A%2F%2Fu%3Ahunter2%40h%2Fd", "kafka://a:1?durability=fsync&archive=postgresql://u:***@h/d"),
        ("redis://hunter2@h/0", "redis://***@h/0"),
        ("redis://hunter2@h/0?prefix=x", "redis://***@h/0?prefix=x"),
        ("sqlite://u:hunter2@h/s.db", "sqlite://***@h/s.db"),
        ("sqlite:///a:b@c.db", "sqlite:///a:b@c.db"),
    ],
)
def test_passwords_in_urls_are_masked(url: str, masked: str) -> None:
    assert mask_url(url) == masked
    assert mask_url(masked) == masked


@given(
    st.sampled_from(
        [
            "postgresql://u:{}@h/d",
            "redis://:{}@h",
            "rediss://u:{}@h:1/0",
            "kafka://u:{}@a:1?state=redis://h",
            "kafka://a:1?state=redis://:{}@h",
            "nonsense://u:{}@h",
        ]
    ),
    st.text(min_size=0, max_size=12),
    st.booleans(),
)
def test_no_password_is_ever_printed(form: str, inner: str, encoded: bool) -> None:
    password = f"S3CR{inner}T5"
    url = form.format(quote(password, safe="")) if encoded or "?state=" in form else form.format(password)
    assert "S3CR" not in mask_url(url)
    assert "T5" not in mask_url(url)
    try:
        shown = repr(load({"url": url}, {}, folder=Path("/")))
    except InvalidSettings as error:
        shown = str(error) + repr(error)
    assert "S3CR" not in shown
    assert "T5" not in shown


def test_no_way_of_printing_settings_shows_a_secret(tmp_path: Path) -> None:
    found = load({}, {"TASKMILL_URL": "redis://:hunter2@h/0", "TASKMILL_API_KEY": "hunter2"}, folder=tmp_path)
    screen = io.StringIO()
    Console(file=screen, width=4_000).print(found, found.settings, found.rows())
    shown = [
        repr(found),
        str(found),
        f"{found.settings}",
        f"{found.settings.url} {found.settings.api_key!r}",
        screen.getvalue(),
        str(found.rows()),
        format(found.settings.api_key),
    ]
    assert all("hunter2" not in text and "***" in text for text in shown)
    assert found.settings.api_key == Secret("hunter2")
    assert found.settings.url.reveal() == "redis://:hunter2@h/0"


def test_a_refused_secret_is_not_in_the_traceback(tmp_path: Path) -> None:
    for environ in (
        {"TASKMILL_API_KEY": "hunter2\n"},
        {"TASKMILL_URL": "postgresq://u:hunter2@h"},
        {"TASKMILL_URL": "postgresql://u:hunter2?hunter2=1&x@h"},
        {"TASKMILL_APIKEY": "hunter2"},
    ):
        try:
            load({}, environ, folder=tmp_path)
        except InvalidSettings as error:
            assert "hunter2" not in "".join(traceback.format_exception(error))
        else:
            pytest.fail(f"accepted {sorted(environ)}")


def test_a_secret_in_a_file_that_others_may_read_is_warned_of(tmp_path: Path) -> None:
    path = written(tmp_path, 'api_key = "hunter2"\n')
    assert load({}, {}, path).warnings == ()
    path.chmod(0o644)
    [warning] = load({}, {}, path).warnings
    assert "chmod 600" in warning
    assert "hunter2" not in warning
    written(tmp_path, "beat = 1\n").chmod(0o644)
    assert load({}, {}, path).warnings == ()


def test_settings_travel_to_other_processes_whole(tmp_path: Path) -> None:
    found = load({"api_key": "hunter2"}, {}, folder=tmp_path)
    assert pickle.loads(pickle.dumps(found)) == found
    assert copy.deepcopy(found) == found


def test_the_reference_explains_every_setting() -> None:
    rows = reference()
    assert [name for name, _, _ in rows] == list(Settings.__struct_fields__)
    assert all(setting.meaning and len(setting.meaning) > 10 for _, _, setting in rows)
    assert {name: default for name, default, _ in rows}["dedupe_window"] == "3d"


@given(st.data())
def test_every_default_can_be_written_and_read_back(data: st.DataObject) -> None:
    name, default, _ = data.draw(st.sampled_from([row for row in reference() if row[1]]))
    found = load({}, {f"TASKMILL_{name.upper()}": default}, folder=Path("/"))
    assert found.settings == Settings()
    assert msgspec.structs.asdict(found.settings).keys() == found.origins.keys()
