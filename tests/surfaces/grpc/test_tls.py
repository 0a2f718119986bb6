"""TLS and mutual TLS with certificates made here: who is let in, and who is refused in the handshake."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import grpc
import pytest

from taskmill.config import load
from taskmill.errors import InvalidSettings
from taskmill.server.tls import Tls
from tests.surfaces.grpc.certificates import Authority
from tests.surfaces.grpc.houses import Client, House, housed, refused

Files = tuple[Path, Path]


@pytest.fixture
def ours(tmp_path: Path) -> Authority:
    return Authority(tmp_path, "ours")


@pytest.fixture
def theirs(tmp_path: Path) -> Authority:
    return Authority(tmp_path, "theirs")


async def answered(house: House, trusted: Authority, own: Files | None = None) -> str:
    """The id of a task that went through; a refused handshake is UNAVAILABLE."""
    chain, key = (own[0].read_bytes(), own[1].read_bytes()) if own else (None, None)
    credentials = grpc.ssl_channel_credentials(trusted.path.read_bytes(), key, chain)
    async with grpc.aio.secure_channel(house.address, credentials) as channel:
        return await Client(channel).submit()


async def test_tls_lets_in_who_trusts_the_authority(tmp_path: Path, ours: Authority, theirs: Authority) -> None:
    async with housed(f"sqlite:///{tmp_path}/store.db", tmp_path, tls=Tls(*ours.issue("server"))) as house:
        assert await answered(house, ours)
        await refused(answered(house, theirs), grpc.StatusCode.UNAVAILABLE)
        async with grpc.aio.insecure_channel(house.address) as channel:
            await refused(Client(channel).submit(), grpc.StatusCode.UNAVAILABLE)
        assert await answered(house, ours)


@pytest.mark.parametrize(
    "shown",
    [
        lambda ours, theirs: None,
        lambda ours, theirs: theirs.issue("client"),
        lambda ours, theirs: ours.issue("client", expired=True),
    ],
    ids=["none", "of another authority", "expired"],
)
async def test_mutual_tls_refuses_in_the_handshake(
    tmp_path: Path, ours: Authority, theirs: Authority, shown: Callable[[Authority, Authority], Files | None]
) -> None:
    tls = Tls(*ours.issue("server"), ours.path)
    async with housed(f"sqlite:///{tmp_path}/store.db", tmp_path, tls=tls) as house:
        await refused(answered(house, ours, shown(ours, theirs)), grpc.StatusCode.UNAVAILABLE)
        assert house.seen == []
        assert await answered(house, ours, ours.issue("good"))
        assert [(route, status) for _, route, status, _ in house.seen] == [("taskmill.v1.Tasks/Submit", "OK")]


async def test_a_certificate_is_no_key(tmp_path: Path, ours: Authority) -> None:
    tls = Tls(*ours.issue("server"), ours.path)
    async with housed(f"sqlite:///{tmp_path}/store.db", tmp_path, tls=tls) as house:
        await house.key("read")
        await refused(answered(house, ours, ours.issue("good")), grpc.StatusCode.UNAUTHENTICATED)


# Settings


def test_settings_name_the_files(tmp_path: Path, ours: Authority) -> None:
    cert, key = ours.issue("server")
    loaded = load({"tls_cert": cert.name, "tls_key": key.name, "tls_client_ca": ours.path.name}, {}, folder=tmp_path)
    assert Tls.of(loaded.settings, tmp_path) == Tls(cert, key, ours.path)
    assert Tls.of(load({}, {}, folder=tmp_path).settings, tmp_path) is None


@pytest.mark.parametrize("given", [{"tls_cert": "a"}, {"tls_key": "a"}, {"tls_client_ca": "a"}])
def test_half_a_certificate_is_refused(tmp_path: Path, given: dict[str, str]) -> None:
    with pytest.raises(InvalidSettings) as caught:
        load(given, {}, folder=tmp_path)
    assert (caught.value.code, caught.value.field) == ("contradiction", next(iter(given)))


def test_files_that_are_none_are_refused(tmp_path: Path, ours: Authority, theirs: Authority) -> None:
    cert, key = ours.issue("server")
    _, other = theirs.issue("server")
    (tmp_path / "text").write_text("no certificate")
    for tls, field, code in (
        (Tls(tmp_path / "missing", key), "tls_cert", "unreadable_file"),
        (Tls(cert, tmp_path), "tls_key", "unreadable_file"),
        (Tls(cert, other), "tls_cert", "invalid_certificate"),
        (Tls(tmp_path / "text", key), "tls_cert", "invalid_certificate"),
        (Tls(cert, key, tmp_path / "text"), "tls_client_ca", "invalid_certificate"),
    ):
        with pytest.raises(InvalidSettings) as caught:
            tls.context()
        assert (caught.value.field, caught.value.code) == (field, code)
        assert caught.value.hint


async def test_a_server_does_not_start_with_wrong_files(tmp_path: Path, ours: Authority, theirs: Authority) -> None:
    cert, _ = ours.issue("server")
    _, other = theirs.issue("server")
    with pytest.raises(InvalidSettings, match="certificate with its key"):
        async with housed(f"sqlite:///{tmp_path}/store.db", tmp_path, tls=Tls(cert, other)):
            pass
