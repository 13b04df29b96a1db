"""After the chaos: every key is driven to an end, by the means that README.md of the project names and no others."""

import random
import time
from pathlib import Path

from families import BOX, Family, family_of
from history import Grant
from journal import Journal, now_us
from modes import Mode
from operations import Worker
from provider import Provider
from session import OWNERS, Lost, Refused, Session

SECONDS_MAX = 120
LEASE_MS = 60_000


class Drain:
    def __init__(self, folder: Path, mode: Mode) -> None:
        self._session = Session(Journal(folder / "journal", "drain"))
        self._provider = Provider(folder / "provider", mode.clock_jumps)
        self._worker = Worker(self._session, self._provider, random.Random("drain"), 0.0, mode)
        self._deadline = time.monotonic() + SECONDS_MAX

    def run(self, keys: list[str]) -> list[str]:
        """Gives back what could not be driven to an end."""
        self._session.run("SET statement_timeout = '30s'")
        self._session.run("CALL idempotency.sweep()")
        stuck = []
        for key in keys:
            if family_of(key) is not BOX:
                stuck += self._until_finished(key)
        self._deliver()
        for key in keys:
            if family_of(key) is BOX:
                stuck += self._until_delivered(key)
        open_keys = self._session.run("SELECT key, state FROM idempotency.records"
                                      " WHERE state NOT IN ('completed', 'rejected', 'not_applied')")
        stuck += [f"{row['key']} is still {row['state']}" for row in open_keys]
        locks = self._session.run("SELECT count(*) AS held FROM pg_locks WHERE locktype = 'advisory'")[0]["held"]
        if locks:
            stuck.append(f"{locks} keys are still locked")
        return stuck

    def come_late(self, grants: list[Grant]) -> list[str]:
        """Tries to end each key with each fence that somebody else has followed. Gives back what was accepted."""
        newest = {row["key"]: row["fence"] for row in self._session.run("SELECT key, fence FROM idempotency.records")}
        accepted = []
        for grant in grants:
            if grant.fence == newest.get(grant.key):
                continue
            try:
                self._session.end(grant.key, "late", "completed", grant.fence)
                accepted.append(f"{grant.key}: fence {grant.fence} completed it, the newest is {newest.get(grant.key)}")
            except Refused as refused:
                if refused.sqlstate not in ("ID003", "ID004"):
                    accepted.append(f"{grant.key}: a fence that is not the newest was refused with {refused.sqlstate}")
        return accepted

    def _until_finished(self, key: str) -> list[str]:
        while time.monotonic() < self._deadline:
            op = self._worker.new_op()
            try:
                claim = self._session.claim(key, op, LEASE_MS, wait_ms=1000)
                if claim["decision"] in ("replay", "rejected"):
                    return []
                if claim["decision"] == "escalated":
                    self._decide(key)
                elif claim["decision"] in OWNERS:
                    self._finish(key, op, claim["decision"], claim["fence"], claim["claimed_at"])
            except Refused as refused:
                return [f"{key}: {refused.sqlstate}"]
            except Lost:
                continue  # Some of its commits are cut off, too: asked again, it goes on from what is so.
        return [f"{key} could not be driven to an end"]

    def _finish(self, key: str, op: str, decision: str, fence: int, claimed_at: int | None) -> None:
        family: Family = family_of(key)
        if not family.is_outside:
            self._worker.finish([(key, {"fence": fence, "claimed_at": claimed_at})], op, "completed", by_fence=True)
            return
        done = self._provider.read(key, fence) if decision == "reconcile" else None
        until = time.monotonic() + LEASE_MS / 1000
        done = done or self._provider.apply(key, op, fence, until, family.effect_kind == "keyed")
        self._worker.end_outside(key, op, "completed", fence, done)

    def _decide(self, key: str) -> None:
        """What a human does: looks, and says what is so."""
        done = self._provider.read(key, now_us())
        verdict = "applied" if done else "not_applied"
        self._session.ask("resolve", key, "SELECT idem_resolve(%s, %s, %s::jsonb, scope => %s)", key, verdict,
                          f'{{"op": "{done}"}}' if done else None, family_of(key).scope, verdict=verdict)

    def _deliver(self) -> None:
        """Dispatches until the outbox is empty."""
        while time.monotonic() < self._deadline:
            waiting = self._session.run("SELECT key, state FROM idempotency.outbox")
            if not waiting:
                return
            for row in waiting:
                if row["state"] == "escalated":
                    self._decide(row["key"])
            for message in self._worker.take(LEASE_MS, 100):
                self._finish(message["key"], self._worker.new_op(), message["decision"], message["fence"], None)

    def _until_delivered(self, key: str) -> list[str]:
        """What has no message was never enqueued, or not in a transaction that committed."""
        state = self._session.run("SELECT state FROM idem_peek(%s, %s)", key, BOX.scope)[0]["state"]
        return [] if state in ("completed", "rejected", "absent") else [f"{key} is {state}"]
