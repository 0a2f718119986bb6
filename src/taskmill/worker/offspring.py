"""One child as its supervisor sees it: the process, the channel to it, the board it writes on."""

from __future__ import annotations

import asyncio
import os
import secrets
import socket
import sys
from pathlib import Path

import msgspec

from taskmill.clock import SECOND
from taskmill.worker.board import Board, Lease
from taskmill.worker.channel import Channel, Message
from taskmill.worker.process import death, kill
from taskmill.worker.settings import Start

__all__ = ["Offspring", "worker_id"]

DEAF = 3 * SECOND
"""A child whose loop has not turned for this long does not begin what it has in hand; others may have it."""


def worker_id() -> str:
    """A name never given before, in which people find the machine and the process."""
    host = "".join(letter for letter in socket.gethostname().lower() if letter.isalnum() or letter in "-.")[:64]
    return f"{host or 'worker'}-{os.getpid()}-{secrets.token_hex(4)}"


class Offspring:
    """A child, from its start to its funeral."""

    def __init__(self, start: Start, process: asyncio.subprocess.Process, channel: Channel, board: Board) -> None:
        self.start = start
        self.worker = start.worker
        self.process = process
        self.channel = channel
        self.board = board
        self.began = asyncio.get_running_loop().time()
        self.joined = False
        self.vacated = asyncio.Event()
        """Its place is free: it is gone, or on its way out."""
        self.draining = False
        self.unwanted = False
        """An operator stopped it: nobody takes its place."""
        self.command: str | None = None
        self.culprits: frozenset[int] = frozenset()
        """Leases whose handlers it was killed for."""
        self.killed = False
        self.away = False
        """The store did not answer it at its end, so it will not answer a report of it either."""
        self.mute = False
        """It let go of the channel and did not end."""
        self.ran = 0

    @classmethod
    async def spawn(cls, start: Start, env: dict[str, str]) -> Offspring:
        """In a session of its own: Ctrl-C must not reach a process that is still too young to ignore it."""
        ours, theirs = socket.socketpair()
        board = Board()
        with theirs:
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "taskmill.worker.child", str(theirs.fileno()), str(board.fd), str(os.getpid()),
                pass_fds=(theirs.fileno(), board.fd), env=env, start_new_session=True,
            )  # fmt: skip
        channel = await Channel.open(ours)
        channel.say(Message("start", data=msgspec.Raw(msgspec.json.encode(start))))
        return cls(start, process, channel, board)

    def leases(self, now: int) -> tuple[int, list[Lease]]:
        """The last answered claim and what it holds, but for what it is too deaf to begin."""
        answered = self.board.answered
        leases = self.board.leases()
        ticked = self.board.ticked
        if ticked and now - ticked > DEAF:
            self.board.withdraw([lease.token for lease in leases if not lease.started])
            leases = [lease for lease in leases if lease.started]
        return answered, leases

    def overdue(self, now: int) -> frozenset[int]:
        """Leases whose handlers are past their hard deadline."""
        return frozenset(lease.token for lease in self.board.leases() if lease.started and 0 < lease.deadline <= now)

    def memory(self) -> int:
        """Resident bytes; 0 where the system does not tell."""
        try:
            pages = int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1])
        except (OSError, ValueError, IndexError):
            return 0
        return pages * os.sysconf("SC_PAGE_SIZE")

    def drain(self, grace: int | None) -> None:
        """Claim nothing more, let run what runs, leave."""
        self.draining = True
        self.vacated.set()
        self.channel.say(Message("drain", number=grace))

    def kill(self, culprits: frozenset[int] = frozenset()) -> None:
        self.culprits = culprits
        self.killed = True
        kill(self.process)

    def death(self, code: int) -> str:
        """How it ended, for people."""
        if self.mute:
            return "it closed its own files, and was killed because nobody could speak to it any more"
        return "its supervisor killed it" if self.killed else death(code)

    def close(self) -> None:
        self.channel.close()
        self.board.close()
