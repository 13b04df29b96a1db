"""A system outside of the database: one file for each key, in which each effect and each read is a line.

Reads and effects of one key exclude each other by a lock on its file. It takes no effect of a caller whose lease is over,
which is what a caller with a well-chosen lease and a time-out of its own sees to. Where the server's clock is moved no
caller can know when its lease ends: there the provider remembers the greatest fence that has read, and refuses those
before it.
"""

import fcntl
import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


class Late(Exception):
    """The caller does not own its key any more: nothing was done."""


class Provider:
    def __init__(self, folder: Path, by_fence: bool) -> None:
        self.folder = folder
        self._by_fence = by_fence

    def apply(self, key: str, op: str, fence: int, until: float, takes_keys: bool) -> str:
        """Has the effect; says which operation's it is. One that takes keys has a key's effect once."""
        with self._open(key) as file:
            lines = entries(file)
            if self._by_fence:
                is_late = any(line["fence"] > fence for line in lines)
            else:
                is_late = time.monotonic() >= until
            if is_late:
                raise Late
            done = effects(lines)
            if done and takes_keys:
                return done[0]
            append(file, {"effect": op, "fence": fence})
            return op

    def read(self, key: str, fence: int) -> str | None:
        """Which operation had its effect. Who owned the key before cannot have one any more."""
        with self._open(key) as file:
            done = effects(entries(file))
            append(file, {"read": True, "fence": fence})
            return done[0] if done else None

    def all(self) -> dict[str, list[str]]:
        """Every effect of every key."""
        found = {}
        for path in self.folder.iterdir():
            lines = [json.loads(line) for line in path.read_text().splitlines()]
            found[path.name] = effects(lines)
        return found

    @contextmanager
    def _open(self, key: str) -> Iterator[int]:
        file = os.open(self.folder / key, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield file
        finally:
            os.close(file)


def entries(file: int) -> list[dict[str, Any]]:
    os.lseek(file, 0, os.SEEK_SET)
    return [json.loads(line) for line in os.read(file, 1_000_000).splitlines()]


def effects(lines: list[dict[str, Any]]) -> list[str]:
    return [line["effect"] for line in lines if "effect" in line]


def append(file: int, line: dict[str, Any]) -> None:
    os.write(file, json.dumps(line).encode() + b"\n")
