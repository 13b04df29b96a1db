"""One run of the chaos in one mode: disturb, drain, check.   run.py CLUSTER FOLDER MODE SEED SECONDS [two-transactions]

CLUSTER is a cluster of scripts/cluster.sh that is not running. Prints a line for each invariant, as in TAP.
"""

import multiprocessing
import os
import re
import signal
import sys
import time
from multiprocessing.context import ForkProcess
from pathlib import Path
from typing import Any

import psycopg
from psycopg.rows import dict_row

import client
from drain import Drain
from families import FAMILIES
from history import History
from invariants import INVARIANTS, World
from journal import Journal
from modes import COMMON_SETTINGS, MODES, Mode
from plan import AFTER_ALL_STEPS_SECONDS, Disturbance, plan
from provider import Provider
from server import Clock, Server
from session import Session, create_scope
from timeline import Timeline

COUNT = 8
# Cheaper than a new interpreter for each life of a client.
FORK = multiprocessing.get_context("fork")
VIOLATIONS_SHOWN_MAX = 10
GONE_SECONDS_MAX = 60


class Clients:
    """The client processes; one that was killed is followed by another."""

    def __init__(self, folder: Path, seed: str, mode: Mode, in_two_transactions: bool) -> None:
        self._arguments = (seed, time.monotonic(), mode, in_two_transactions)
        self._folder = folder
        self._lives = [0] * COUNT
        self.complaints: list[str] = []
        self.running = [self._spawn(number) for number in range(COUNT)]

    def _spawn(self, number: int) -> ForkProcess:
        self._lives[number] += 1
        name = f"client-{number}.{self._lives[number]}"
        process = FORK.Process(target=client.work, args=(self._folder, name, *self._arguments))
        process.start()
        return process

    def kill(self, number: int) -> None:
        self.running[number].kill()
        self.running[number].join()

    def keep_running(self) -> None:
        for number, process in enumerate(self.running):
            if process.is_alive():
                continue
            if process.exitcode != -signal.SIGKILL:
                self.complaints.append(f"client {number} ended by itself, with {process.exitcode}: see clients.log")
            self.running[number] = self._spawn(number)

    def end(self) -> None:
        for number in range(COUNT):
            self.kill(number)

    def lives(self) -> int:
        return sum(self._lives)


class Chaos:
    def __init__(self, server: Server, clients: Clients, journal: Journal, clock: Clock | None) -> None:
        self._server, self._clients, self._journal, self._clock = server, clients, journal, clock
        self._paused: list[tuple[float, ForkProcess]] = []

    def run(self, disturbances: list[Disturbance], seconds: float) -> None:
        start = time.monotonic()
        waiting = list(disturbances)
        while (elapsed := time.monotonic() - start) < seconds:
            self._clients.keep_running()
            self._wake(time.monotonic())
            if waiting and waiting[0].at <= elapsed:
                self.disturb(waiting.pop(0))
            else:
                time.sleep(0.01)
        self._wake(float("inf"))

    def _wake(self, now: float) -> None:
        for until, process in [pair for pair in self._paused if pair[0] <= now]:
            send(process, signal.SIGCONT)
            self._paused.remove((until, process))

    def disturb(self, one: Disturbance) -> None:
        asked: dict[str, Any] = {"choice": one.choice}
        if one.what == "step_clock":
            asked = {"offset": one.choice}
        step = self._journal.begin(one.what, **asked)
        try:
            getattr(self, f"_{one.what}")(one)
        except psycopg.OperationalError as error:
            # Nobody has crashed the server just now.
            self._clients.complaints.append(f"{one.what}: {error}")
            self._server.until_it_answers()
        self._journal.told(step)

    def _kill_client(self, one: Disturbance) -> None:
        self._clients.kill(one.choice % COUNT)

    def _pause_client(self, one: Disturbance) -> None:
        process = self._clients.running[one.choice % COUNT]
        if process.is_alive():
            send(process, signal.SIGSTOP)
            self._paused.append((time.monotonic() + one.length, process))

    def _terminate_backend(self, one: Disturbance) -> None:
        pids = self._server.backends()
        if pids:
            self._server.terminate(pids[one.choice % len(pids)])

    def _crash(self, one: Disturbance) -> None:
        self._server.crash()
        self._server.start()

    def _kill_backend(self, one: Disturbance) -> None:
        self._server.kill_one(one.choice)

    def _step_clock(self, one: Disturbance) -> None:
        assert self._clock is not None
        self._clock.set(one.choice)


def send(process: ForkProcess, what: signal.Signals) -> None:
    """Only to one that is alive: the number of one that ended may be another's by now."""
    if process.is_alive() and process.pid is not None:
        os.kill(process.pid, what)


def look() -> tuple[list[dict[str, Any]], dict[str, dict[str, Any]], dict[str, list[str]]]:
    """The tables, when all is over: ledger, records, orders."""
    with psycopg.connect(application_name="driver", row_factory=dict_row) as connection:
        ledger = connection.execute(
            "SELECT key, op, state, fence, (extract(epoch FROM claimed_at) * 1000000)::bigint AS claimed_at,"
            " (extract(epoch FROM at) * 1000000)::bigint AS at FROM ledger ORDER BY id").fetchall()
        records = connection.execute("SELECT key, state, fence, result ->> 'op' AS op FROM idempotency.records").fetchall()
        orders = connection.execute("SELECT key, array_agg(op) AS ops FROM orders GROUP BY key").fetchall()
    return ledger, {row["key"]: row for row in records}, {row["key"]: row["ops"] for row in orders}


def until_gone(server: Server) -> None:
    """Sessions of killed clients end by themselves, or are ended."""
    deadline = time.monotonic() + GONE_SECONDS_MAX
    while pids := server.backends():
        for pid in pids:
            server.terminate(pid)
        if time.monotonic() > deadline:
            raise SystemExit(f"sessions do not end: {pids}")
        time.sleep(0.05)


def report(world: World, label: str) -> bool:
    is_well = True
    for name, invariant in INVARIANTS.items():
        violations = list(dict.fromkeys(invariant(world)))
        print(f"{'not ok' if violations else 'ok'} - {label}: {name}", flush=True)
        for violation in violations[:VIOLATIONS_SHOWN_MAX]:
            print(f"#   {violation}")
        if len(violations) > VIOLATIONS_SHOWN_MAX:
            print(f"#   and {len(violations) - VIOLATIONS_SHOWN_MAX} more")
        is_well = is_well and not violations
    return is_well


def main() -> None:
    cluster, folder, mode_name, seed, seconds, *plant = sys.argv[1:]
    mode, place = MODES[mode_name], Path(folder)
    for name in ("journal", "provider"):
        (place / name).mkdir(parents=True)
    clock = Clock(place) if mode.clock_jumps else None
    server = Server(Path(cluster), clock)
    server.configure((*COMMON_SETTINGS, *mode.settings))
    server.start()
    session = Session(Journal(place / "journal", "driver-setup"))
    session.run(Path(__file__).with_name("schema.sql").read_text(encoding="utf-8"))
    for family in FAMILIES.values():
        create_scope(session, family)
    session.drop()

    clients = Clients(place, seed, mode, "two-transactions" in plant)
    chaos = Chaos(server, clients, Journal(place / "journal", "driver"), clock)
    try:
        chaos.run(plan(seed, float(seconds), mode), float(seconds))
    finally:
        clients.end()
    if clock:
        # Leases that were given when the clock was ahead have ended then.
        chaos.disturb(Disturbance(float(seconds), "step_clock", AFTER_ALL_STEPS_SECONDS, 0))
    until_gone(server)
    drain = Drain(place, mode)
    before = History(place / "journal")
    stuck = drain.run(before.keys)
    late = drain.come_late(before.grants)
    ledger, records, orders = look()
    looked = time.monotonic()
    server.stop()

    history = History(place / "journal")
    world = World(mode, history, Timeline(history, ledger, mode, looked), records, orders,
                  Provider(place / "provider", False).all(), stuck, late, clients.complaints + server.faults())
    print(f"# {mode.name}: {len(history.steps)} requests on {len(history.keys)} keys by {clients.lives()} clients, "
          f"{len(ledger)} effects inside, {sum(map(len, world.provider.values()))} outside, {len(history.crashes)} crashes, which "
          f"forgot {world.timeline.forgotten(history.said)} finished keys that somebody was told of")
    sys.exit(0 if report(world, mode.name) else 1)


if __name__ == "__main__":
    main()
