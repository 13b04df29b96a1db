"""One connection of a client, and every request of the protocol that it can make, each with its lines in the journal."""

import os
import socket
import time
from typing import Any

import psycopg
from psycopg.rows import dict_row
from psycopg.types.json import Jsonb

from families import Family, family_of, run_of
from journal import Journal

CONNECT_SECONDS_MAX = 60
OWNERS = ("execute", "reconcile")
MICROSECONDS = "(extract(epoch FROM {0}) * 1000000)::bigint AS {0}"
CLAIM_COLUMNS = "decision, fence, attempt, result, reason, " + ", ".join(
    MICROSECONDS.format(column) for column in ("claimed_at", "lease_expires_at", "finished_at"))


class Refused(Exception):
    """The server raised an error: nothing was done."""

    def __init__(self, sqlstate: str) -> None:
        super().__init__(sqlstate)
        self.sqlstate = sqlstate


class Lost(Exception):
    """The connection broke: whether the request had its effect is open."""


class Session:
    def __init__(self, journal: Journal) -> None:
        self.journal = journal
        self._connection: psycopg.Connection[dict[str, Any]] | None = None

    # --- the connection ---------------------------------------------------------------------------------------------

    def connect(self) -> None:
        """Connects as soon as the server lets us."""
        deadline = time.monotonic() + CONNECT_SECONDS_MAX
        while self._connection is None:
            try:
                self._connection = psycopg.connect(autocommit=True, row_factory=dict_row,
                                                   application_name=self.journal.client)
            except psycopg.OperationalError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.02)

    def drop(self) -> None:
        """Breaks the connection off, without a word to the server."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def run(self, statement: str, *values: Any) -> list[dict[str, Any]]:
        self.connect()
        assert self._connection is not None
        try:
            cursor = self._connection.execute(statement, values)
            return cursor.fetchall() if cursor.description else []
        except psycopg.Error as error:
            if self._connection.closed or is_end_of_connection(error.sqlstate):
                self.drop()
                raise Lost from error
            raise Refused(error.sqlstate or "") from error

    def begin(self) -> None:
        self.run("BEGIN")

    def commit(self) -> None:
        self.run("COMMIT")

    def commit_unheard(self) -> None:
        """Sends COMMIT and breaks the connection off before the answer comes."""
        assert self._connection is not None
        self._connection.pgconn.send_query(b"COMMIT")
        self._connection.pgconn.flush()
        with socket.socket(fileno=os.dup(self._connection.fileno())) as line:
            line.shutdown(socket.SHUT_RDWR)
        self.drop()
        raise Lost

    def roll_back(self) -> None:
        """Leaves whatever transaction is open; a lost connection has left it already."""
        if self._connection is not None:
            try:
                self.run("ROLLBACK")
            except Lost:
                pass

    # --- requests ---------------------------------------------------------------------------------------------------

    def ask(self, what: str, key: str | None, statement: str, *values: Any, **asked: Any) -> list[dict[str, Any]]:
        """One statement, with its lines in the journal."""
        self.connect()
        step = self.journal.begin(what, key, **asked)
        with Told(self.journal, step) as told:
            told.answer = {"rows": self.run(statement, *values)}
        return told.answer["rows"]

    def claim(self, key: str, op: str, lease_ms: int | None = None, wait_ms: int | None = None) -> dict[str, Any]:
        lease_is, wait_is = milliseconds(lease_ms), milliseconds(wait_ms)
        return self.ask("claim", key,
                        f"SELECT {CLAIM_COLUMNS} FROM idem_claim(%s, %s, %s, %s::interval, %s::interval, %s)",
                        key, args(key, op), family_of(key).scope, lease_is, wait_is, run_of(key),
                        op=op, lease_ms=lease_ms)[0]

    def claim_many(self, keys: list[str], op: str) -> list[dict[str, Any]]:
        """Claims keys of one family in this transaction."""
        self.connect()
        steps = [self.journal.begin("claim", key, op=op, lease_ms=None) for key in keys]
        with Told(self.journal, *steps) as told:
            rows = self.run(f"SELECT {CLAIM_COLUMNS} FROM idem_claim_many(%s, %s, %s, run => %s) ORDER BY ord",
                            keys, [args(key, op) for key in keys], family_of(keys[0]).scope, run_of(keys[0]))
            told.answers = [{"rows": [row]} for row in rows]
        return rows

    def once(self, key: str, op: str, by_function: bool) -> dict[str, Any]:
        """Claim, effect and completion in one call."""
        function, effect = ("idem_call", "have_effect") if by_function else ("idem_once", "SELECT have_effect($1)")
        return self.ask("once", key, f"SELECT result, replayed FROM {function}(%s, %s, %s, %s, run => %s)",
                        key, effect, args(key, op), family_of(key).scope, run_of(key), op=op)[0]

    def renew(self, key: str, fence: int, lease_ms: int) -> None:
        self.ask("renew", key, f"SELECT {MICROSECONDS.format('until')} FROM idem_renew(%s, %s, %s, %s) AS until",
                 key, milliseconds(lease_ms), family_of(key).scope, fence, fence=fence, lease_ms=lease_ms)

    def end(self, key: str, op: str, ending: str, fence: int | None, result: str | None = None) -> dict[str, Any] | None:
        """Ends a claim: completed, rejected, not_applied, unknown or released. Not in the journal: see finish."""
        scope = family_of(key).scope
        stored = Jsonb({"op": result or op})
        if ending == "completed":
            return self.run("SELECT idem_complete(%s, %s, %s, %s) AS result", key, stored, scope, fence)[0]["result"]
        if ending == "released":
            self.run("SELECT idem_release(%s, %s, %s)", key, scope, fence)
            return None
        reason = "as planned"
        if ending == "rejected":
            self.run("SELECT idem_fail(%s, 'rejected', %s, %s, %s, %s)", key, reason, stored, scope, fence)
            return {"op": result or op}
        self.run("SELECT idem_fail(%s, %s, %s, scope => %s, fence => %s)", key, ending, reason, scope, fence)
        return None


class Told:
    """Around the requests of some steps: writes how they went into the journal, whichever way they end."""

    def __init__(self, journal: Journal, *steps: int) -> None:
        self._journal = journal
        self._steps = steps
        self.answers: list[dict[str, Any]] = [{} for _ in steps]

    @property
    def answer(self) -> dict[str, Any]:
        return self.answers[0]

    @answer.setter
    def answer(self, answer: dict[str, Any]) -> None:
        self.answers = [answer for _ in self._steps]

    def __enter__(self) -> "Told":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _trace: object) -> None:
        for step, answer in zip(self._steps, self.answers, strict=True):
            if error is None:
                self._journal.told(step, **answer)
            elif isinstance(error, Refused):
                self._journal.refused(step, error.sqlstate)
            else:
                self._journal.lost(step)


def milliseconds(count: int | None) -> str | None:
    return None if count is None else f"{count} ms"


def args(key: str, op: str) -> Jsonb:
    """What an operation is called with. The scopes leave /op out of the comparison: it is who asks."""
    return Jsonb({"key": key, "run": run_of(key), "op": op})


def is_end_of_connection(sqlstate: str | None) -> bool:
    return sqlstate is None or sqlstate.startswith("08") or sqlstate in ("57P01", "57P02", "57P03")


def create_scope(session: Session, family: Family) -> None:
    session.run("SELECT idem_scope_set(%s, dedup_window => %s, effect_kind => %s, ignore_args => '{/op}'"
                + family.policies + ")", family.scope, f"{family.window_us // 1000} ms", family.effect_kind)
