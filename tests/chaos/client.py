"""A client process: works until it is killed."""

import random
import sys
from pathlib import Path

from journal import Journal
from modes import Mode
from operations import Worker
from provider import Provider
from session import Session


def work(folder: Path, name: str, seed: str, started: float, mode: Mode, in_two_transactions: bool) -> None:
    with open(folder / "clients.log", "a", encoding="utf-8") as log:
        sys.stdout = sys.stderr = log
        worker = Worker(Session(Journal(folder / "journal", name)), Provider(folder / "provider", mode.clock_jumps),
                        random.Random(f"{seed}:{name}"), started, mode, in_two_transactions)
        while True:
            worker.work()
