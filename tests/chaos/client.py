"""A client process: works until it is killed.   client.py FOLDER NAME SEED STARTED MODE [two-transactions]"""

import random
import sys
from pathlib import Path

from journal import Journal
from modes import MODES
from operations import Worker
from provider import Provider
from session import Session


def main() -> None:
    folder, name, seed, started, mode, *plant = sys.argv[1:]
    clock_jumps = MODES[mode].clock_jumps
    worker = Worker(Session(Journal(Path(folder) / "journal", name)),
                    Provider(Path(folder) / "provider", by_fence=clock_jumps),
                    random.Random(seed), float(started),
                    in_two_transactions="two-transactions" in plant, clock_jumps=clock_jumps)
    while True:
        worker.work()


if __name__ == "__main__":
    main()
