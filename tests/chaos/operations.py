"""What a client does, one function for each kind of work. Chance decides how it goes on, as the seed says.

A client keeps the rules of README.md of the whole project: it has an effect only when told to execute, reads the other
system when told to reconcile, and ends a claim with its fence. It may be slow, late, killed or cut off at any point.
"""

import random
import time
from collections.abc import Callable
from typing import Any

from families import BOX, KEYED, LEASED, OUTSIDE, RUN, SHORT, TX, Family, family_of, run_of
from modes import Mode
from provider import Late, Provider
from session import OWNERS, Lost, Refused, Session, Told, args, milliseconds

# New keys of a family come up in each second; clients work on the newest few, and now and then on one before them.
KEYS_PER_SECOND = 5
NEWEST_KEYS = 5
OLDER_KEYS = 15
REPEATED_KEYS = 8
RUNS = 3
KEYS_OF_RUN = 3
BATCH_ROWS = 3


class Worker:
    def __init__(self, session: Session, provider: Provider, chance: random.Random, started: float,
                 mode: Mode, in_two_transactions: bool = False) -> None:
        self.session = session
        self.provider = provider
        self.chance = chance
        self.started = started
        self.in_two_transactions = in_two_transactions
        self.clock_jumps = mode.clock_jumps
        self.may_forget = mode.may_forget
        self._ops = 0

    def work(self) -> None:
        """One piece of work of any kind."""
        kinds: dict[Callable[[], None], int] = {
            lambda: self.transactional(TX): 20,
            lambda: self.transactional(SHORT): 20,
            lambda: self.transactional(RUN): 12,
            lambda: self.transactional(LEASED): 6,
            lambda: self.in_one_call(self.chance.choice((TX, SHORT, RUN))): 16,
            lambda: self.pair(TX): 10,
            lambda: self.leased(LEASED): 30,
            self.run_of_keys: 4,
            self.sweep: 4,
        }
        if not self.is_quiet():
            kinds |= {
                lambda: self.leased(OUTSIDE): 24,
                lambda: self.leased(KEYED): 16,
                self.enqueue: 12,
                self.dispatch: 16,
            }
        kind = self.chance.choices(list(kinds), list(kinds.values()))[0]
        try:
            kind()
        except Refused:
            pass
        except Lost:
            pass
        self.session.roll_back()

    def is_quiet(self) -> bool:
        """A claim of an outside effect waits for the disk, and all that was committed before it is there then, too. A crash
        forgets something only where nobody makes such claims: in every other second."""
        return self.may_forget and int(time.monotonic() - self.started) % 2 == 1

    def key(self, family: Family) -> str:
        if family is RUN:
            return f"{family.name}:{self.chance.randrange(RUNS)}:{self.chance.randrange(KEYS_OF_RUN)}"
        if family is SHORT:
            return f"{family.name}:{self.chance.randrange(REPEATED_KEYS)}"
        newest = int((time.monotonic() - self.started) * KEYS_PER_SECOND)
        if self.chance.random() < 0.2:
            return f"{family.name}:{max(0, newest - self.chance.randrange(OLDER_KEYS))}"
        return f"{family.name}:{newest + self.chance.randrange(NEWEST_KEYS)}"

    def new_op(self) -> str:
        self._ops += 1
        return f"{self.session.journal.client}.{self._ops}"

    def take_time(self, seconds_max: float = 0.02) -> None:
        """The work that lies between a claim and its end."""
        time.sleep(self.chance.random() * seconds_max)

    def choose(self, **weights: int) -> str:
        return self.chance.choices(list(weights), list(weights.values()))[0]

    # --- in a transaction -------------------------------------------------------------------------------------------

    def transactional(self, family: Family) -> None:
        key, op = self.key(family), self.new_op()
        self.session.begin()
        self.perhaps_impatient()
        claim = self.session.claim(key, op, wait_ms=self.chance.choice((None, None, 0, 50)))
        if claim["decision"] in OWNERS:
            self.take_time()
            ending = self.choose(completed=74, rejected=8, not_applied=8, released=5, rolled_back=5)
            self.finish([(key, claim)], op, ending)
        else:
            self.session.commit()

    def pair(self, family: Family) -> None:
        """Two keys in one transaction: one after the other, which may be a deadlock, or as a batch, which never is."""
        keys = list({self.key(family), self.key(family)})
        op = self.new_op()
        as_batch = self.clock_jumps or self.chance.random() < 0.4
        self.session.begin()
        if as_batch:
            claims = self.session.claim_many(keys, op)
        else:
            claims = []
            for key in keys:
                claims.append(self.session.claim(key, op))
                self.take_time()
        owned = [(key, claim) for key, claim in zip(keys, claims, strict=True) if claim["decision"] in OWNERS]
        if owned:
            self.finish(owned, op, "completed")
        else:
            self.session.commit()

    def in_one_call(self, family: Family) -> None:
        self.session.once(self.key(family), self.new_op(), by_function=self.chance.random() < 0.5)

    def perhaps_impatient(self) -> None:
        """PostgreSQL measures lock_timeout by a clock that can be moved: not where it is."""
        if not self.clock_jumps and self.chance.random() < 0.2:
            self.session.run("SET LOCAL lock_timeout = '10ms'")

    def finish(self, owned: list[tuple[str, dict[str, Any]]], op: str, ending: str, by_fence: bool = False) -> None:
        """The effect and the end of its claim in one transaction: the open one, or for a lease a new one."""
        journal = self.session.journal
        steps = [journal.begin("finish", key, op=op, ending=ending, fence=claim["fence"]) for key, claim in owned]
        with Told(journal, *steps) as told:
            if by_fence:
                self.session.begin()
                self.perhaps_impatient()
            for key, claim in owned:
                fence = claim["fence"] if by_fence else None
                if ending in ("completed", "rejected"):
                    self.effect(key, op, ending, claim)
                    if self.in_two_transactions and by_fence:
                        self.session.commit()
                        self.take_time()
                        self.session.begin()
                if ending != "rolled_back":
                    self.session.end(key, op, ending, fence)
            if ending == "rolled_back":
                self.session.run("ROLLBACK")
            elif self.chance.random() < 0.05:
                self.session.commit_unheard()
            else:
                self.session.commit()
            told.answer = {}

    def effect(self, key: str, op: str, state: str, claim: dict[str, Any]) -> None:
        self.session.run("INSERT INTO ledger (key, op, state, run, fence, claimed_at, at) VALUES (%s, %s, %s, %s, %s,"
                         " timestamptz 'epoch' + %s * interval '1 microsecond', clock_timestamp())",
                         key, op, state, run_of(key), claim["fence"], claim["claimed_at"])

    # --- under a lease ----------------------------------------------------------------------------------------------

    def leased(self, family: Family) -> None:
        key, op = self.key(family), self.new_op()
        lease_ms = self.chance.choice((150, 300, 600))
        asked = time.monotonic()
        claim = self.session.claim(key, op, lease_ms, wait_ms=self.chance.choice((None, None, 0, 100)))
        if claim["decision"] not in OWNERS:
            return
        self.take_time(self.chance.choice((0.01, 0.01, 0.05, 0.8)))
        until = asked + lease_ms / 1000
        if self.chance.random() < 0.3:
            lease_ms = self.chance.choice((50, 300, 900, 3000))
            asked = time.monotonic()
            self.session.renew(key, claim["fence"], lease_ms)
            until = asked + lease_ms / 1000
            self.take_time(self.chance.choice((0.01, 0.4)))
        if self.chance.random() < 0.06:
            return
        if family.is_outside:
            self.outside(key, op, claim, until)
        else:
            self.inside(key, op, claim)

    def inside(self, key: str, op: str, claim: dict[str, Any]) -> None:
        ending = self.choose(completed=74, rejected=6, not_applied=8, released=6, unknown=6)
        try:
            self.finish([(key, claim)], op, ending, by_fence=True)
        except Lost:
            if ending == "completed" and not self.in_two_transactions:
                self.finish_again(key, op, claim)

    def finish_again(self, key: str, op: str, claim: dict[str, Any]) -> None:
        """After a lost acknowledgement: the same completion, and its effect only where it was rolled back."""
        step = self.session.journal.begin("finish", key, op=op, ending="completed", fence=claim["fence"])
        with Told(self.session.journal, step) as told:
            self.session.begin()
            result = self.session.end(key, op, "completed", claim["fence"])
            self.session.run("INSERT INTO ledger (key, op, state, run, fence, claimed_at, at)"
                             " SELECT %s, %s, 'completed', %s, %s, timestamptz 'epoch' + %s * interval '1 microsecond', now()"
                             "  WHERE NOT EXISTS (SELECT FROM ledger WHERE key = %s AND op = %s)",
                             key, op, run_of(key), claim["fence"], claim["claimed_at"], key, op)
            self.session.commit()
            told.answer = {"result": result}

    def outside(self, key: str, op: str, claim: dict[str, Any], until: float) -> None:
        """An effect in the provider: read first where told so, end the claim as it went."""
        fence = claim["fence"]
        done = self.provider.read(key, fence) if claim["decision"] == "reconcile" else None
        if done is None:
            way = self.choose(sent=76, refused=5, never_sent=7, timed_out=8, given_back=4)
            if way == "refused" and family_of(key) is KEYED and claim["attempt"] > 1:
                # One that takes keys refuses nothing that it may have done for an attempt before.
                way = "sent"
            if way in ("refused", "never_sent", "given_back"):
                self.end_outside(key, op, {"refused": "rejected", "never_sent": "not_applied"}.get(way, "released"), fence)
                return
            if way == "sent" or self.chance.random() < 0.5:
                try:
                    done = self.provider.apply(key, op, fence, until, family_of(key) is KEYED)
                except Late:
                    return
            if way == "timed_out":
                self.end_outside(key, op, "unknown", fence)
                return
        self.take_time()
        assert done is not None
        try:
            self.end_outside(key, op, "completed", fence, done)
        except Lost:
            self.end_outside(key, op, "completed", fence, done)

    def end_outside(self, key: str, op: str, ending: str, fence: int, result: str | None = None) -> None:
        step = self.session.journal.begin("finish", key, op=op, ending=ending, fence=fence, result=result)
        with Told(self.session.journal, step) as told:
            told.answer = {"result": self.session.end(key, op, ending, fence, result)}

    # --- the outbox -------------------------------------------------------------------------------------------------

    def enqueue(self) -> None:
        key, op = self.key(BOX), self.new_op()
        number = int(key.split(":")[1])
        line = f"line-{number % 4}" if number % 4 < 2 else None
        journal = self.session.journal
        self.session.connect()
        step = journal.begin("enqueue", key, op=op, line=line)
        with Told(journal, step) as told:
            self.session.begin()
            answer = self.session.run(
                "SELECT decision, enqueued, result FROM idem_enqueue(%s, 'box', %s, %s, %s, ordering_key => %s)",
                key, args(key, op), args(key, op), BOX.scope, line)[0]
            if answer["enqueued"]:
                self.session.run("INSERT INTO orders VALUES (%s, %s)", key, op)
            self.take_time()
            way = self.choose(committed=86, rolled_back=9, unheard=5)
            if way == "rolled_back":
                raise Refused("rolled back")
            if way == "unheard":
                self.session.commit_unheard()
            self.session.commit()
            told.answer = {"rows": [answer]}

    def dispatch(self) -> None:
        lease_ms = self.chance.choice((150, 300, 600))
        asked = time.monotonic()
        for message in self.take(lease_ms, BATCH_ROWS):
            if self.chance.random() < 0.05:
                return
            self.take_time()
            try:
                self.outside(message["key"], self.new_op(), message, asked + lease_ms / 1000)
            except Refused:
                continue

    def take(self, lease_ms: int, rows_max: int) -> list[dict[str, Any]]:
        return self.session.ask(
            "dispatch", None,
            "SELECT key, fence, decision, (extract(epoch FROM lease_expires_at) * 1000000)::bigint AS lease_expires_at"
            f"  FROM idem_dispatch('box', %s, %s, NULL, ARRAY['{BOX.scope}'])", rows_max, milliseconds(lease_ms),
            lease_ms=lease_ms)

    # --- runs and upkeep --------------------------------------------------------------------------------------------

    def run_of_keys(self) -> None:
        run = f"run-{self.chance.randrange(RUNS)}"
        if self.chance.random() < 0.6:
            self.session.ask("run_begin", None, "SELECT idem_run_begin(%s, '1 hour') IS NOT NULL", run, run=run)
        else:
            self.session.ask("run_end", None, "SELECT idem_run_end(%s)", run, run=run)

    def sweep(self) -> None:
        self.session.ask("sweep", None, "CALL idempotency.sweep()")
