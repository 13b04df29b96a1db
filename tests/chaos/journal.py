"""What each client asked and was told: one append-only file for each, a JSON object on each line.

A line is written in one system call, before a request is sent and after its answer came, so that a client that is killed
leaves a history that is true as far as it goes.
"""

import json
import os
import time
from pathlib import Path
from typing import Any


def now_us() -> int:
    """The machine's clock, which is the server's too unless that is moved: microseconds since 1970."""
    return time.time_ns() // 1_000


class Journal:
    def __init__(self, folder: Path, client: str) -> None:
        self.client = client
        self._file = os.open(folder / f"{client}.jsonl", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        self._steps = 0

    def begin(self, what: str, key: str | None = None, **asked: Any) -> int:
        """Says that a request is about to be sent."""
        self._steps += 1
        self._write({"step": self._steps, "what": what, "key": key, "asked": asked})
        return self._steps

    def told(self, step: int, **answer: Any) -> None:
        """Says what the answer was: from now on it is acknowledged."""
        self._write({"step": step, "answer": answer})

    def refused(self, step: int, sqlstate: str) -> None:
        """Says that the request failed, and had no effect."""
        self._write({"step": step, "refused": sqlstate})

    def lost(self, step: int) -> None:
        """Says that no answer will come: whether the request had its effect is open."""
        self._write({"step": step, "lost": True})

    def _write(self, line: dict[str, Any]) -> None:
        line |= {"moment": time.monotonic(), "at": now_us()}
        os.write(self._file, json.dumps(line).encode() + b"\n")
