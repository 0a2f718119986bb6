"""The channel: messages come whole and in order, and its end is told, however it comes."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator

import msgspec
import pytest

from taskmill.worker.channel import Channel, Message


class Pair(msgspec.Struct):
    ours: Channel
    theirs: Channel
    socket: socket.socket


@pytest.fixture
async def pair() -> AsyncIterator[Pair]:
    one, other = socket.socketpair()
    pair = Pair(await Channel.open(one), await Channel.open(other), other)
    yield pair
    pair.ours.close()
    pair.theirs.close()
    await asyncio.sleep(0)


async def test_what_is_said_is_heard_in_order(pair: Pair) -> None:
    said = [
        Message("stats", data=msgspec.Raw(b'{"a":"\\n"}')),
        Message("lost", tokens=(1, 2**63 - 1)),
        Message("cancel", ids=("é\n", "")),
        Message("drain", number=0),
    ]
    for message in said:
        pair.ours.say(message)
    assert [await pair.theirs.hear() for _ in said] == said


async def test_a_large_message_comes_whole(pair: Pair) -> None:
    pair.ours.say(Message("attempt", text="x" * 3_000_000))
    message, _ = await asyncio.gather(pair.theirs.hear(), pair.ours.flush())
    assert message is not None
    assert len(message.text) == 3_000_000


async def test_its_end_is_told(pair: Pair) -> None:
    pair.ours.say(Message("last"))
    pair.ours.close()
    assert await pair.theirs.hear() == Message("last")
    assert await pair.theirs.hear() is None
    assert await pair.theirs.hear() is None


async def test_half_a_message_is_none(pair: Pair) -> None:
    one, other = socket.socketpair()
    channel = await Channel.open(other)
    one.send(b'{"kind":"dra')
    one.close()
    assert await channel.hear() is None
    channel.close()
    await asyncio.sleep(0)


async def test_nobody_minds_words_to_one_who_is_gone(pair: Pair) -> None:
    pair.theirs.close()
    assert await pair.ours.hear() is None
    pair.ours.say(Message("lost"))
    pair.ours.close()
    pair.ours.say(Message("lost"))
    await pair.ours.flush()
