#!/usr/bin/env python3
"""Delivers the messages of one destination to a payment API: each payment once, whatever dies meanwhile.

Any number run side by side. A request whose outcome is unknown is not repeated: the API is read first. README.md says
how the environment configures it. SIGTERM: it ends what it is sending and gives back the rest.
"""
import http.client, json, logging, os, random, signal, socket, ssl, time
from datetime import timedelta
from urllib.parse import quote, urlsplit

import psycopg.rows
from psycopg.types.json import Jsonb

DATABASE = os.environ.get("DISPATCH_DATABASE", "")  # a libpq connection string; the PG… variables hold too
DESTINATION = os.environ.get("DISPATCH_DESTINATION", "payments")
API = urlsplit(os.environ.get("DISPATCH_API", "http://127.0.0.1:8080"))
SCOPES = os.environ["DISPATCH_SCOPES"].split(",") if "DISPATCH_SCOPES" in os.environ else None  # None: all granted
ROWS_MAX, WAIT_S = int(os.environ.get("DISPATCH_ROWS_MAX", "10")), float(os.environ.get("DISPATCH_WAIT_S", "10"))
LEASE_S = float(os.environ.get("DISPATCH_LEASE_S", "30"))
HTTP_TIMEOUT_S = float(os.environ.get("DISPATCH_HTTP_TIMEOUT_S", "5"))
SETTLE_S = float(os.environ.get("DISPATCH_SETTLE_S", "10"))  # so long the API may still act on a request given up
BODY_BYTES_MAX, PAUSE_S_MAX, STOP_S_MAX = 32 * 1024, 5.0, 20.0  # of an answer; without a database; after SIGTERM
# The words of idempotency.failure_kinds. Before the connection stands nothing can have happened.
BEFORE = {ssl.SSLError: "tls_handshake", socket.gaierror: "dns", TimeoutError: "connect_timeout",
          Exception: "connection_refused"}
AFTER = {TimeoutError: "timeout", ValueError: "response_truncated", Exception: "connection_reset"}
CONNECT = {"autocommit": True, "row_factory": psycopg.rows.dict_row, "client_encoding": "UTF8"}  # SQL_ASCII gives bytes
NOT_OURS = ("ID003", "ID004")  # somebody has claimed the message since, or ended it
NOT_STORABLE = ("22P02", "22P05", "54000")  # an answer that jsonb or the scope's max_result_bytes does not take


class Dispatcher:
    def __init__(self):
        self.connection, self.is_polling, self.is_stopping, self.stop_at = None, False, False, float("inf")

    def run(self):
        while not self.is_stopping:
            batch_ends = time.monotonic() + LEASE_S  # at the earliest: the leases begin when the wait is over
            for message in self.poll():
                if self.is_stopping:
                    self.tell("idem_release", message)
                elif self.holds(message, batch_ends):
                    self.execute(message) if message["decision"] == "execute" else self.reconcile(message)

    def poll(self):
        self.is_polling = True
        rows = self.call("SELECT key, scope, fence, decision, payload FROM idem_dispatch(%s, %s, %s, %s, %s)",
                         (DESTINATION, ROWS_MAX, timedelta(seconds=LEASE_S), timedelta(seconds=WAIT_S), SCOPES))
        self.is_polling = False
        return rows

    def holds(self, message, lease_ends):
        """Makes sure that the lease outlasts one request and its settling, after a long batch or wait."""
        while time.monotonic() + HTTP_TIMEOUT_S + SETTLE_S > lease_ends:
            lease_ends = time.monotonic() + LEASE_S
            if not self.tell("idem_renew", message, lease=timedelta(seconds=LEASE_S)):
                return False
        return True

    def execute(self, message):
        status, answer, kind = request("POST", "/payments", message["key"], message["payload"])
        if status in (200, 201):  # rows of your own that tell of the payment belong in one transaction with this
            return self.tell("idem_complete", message, result=Jsonb(answer))
        verdict = self.call("SELECT idem_failure_kind(%s) AS verdict", (kind,))[0]["verdict"]
        logging.info("%s: %s, hence %s", message["key"], kind, verdict)
        result = Jsonb(answer) if verdict == "rejected" else None
        return self.tell("idem_fail", message, verdict=verdict, reason=kind, result=result)

    def reconcile(self, message):
        """The paired read. Not any 404 says that nothing was paid: a wrong URL gives one too."""
        status, answer, kind = request("GET", "/payments/" + quote(message["key"], safe=""), message["key"])
        verdict, result = ("applied", Jsonb(answer)) if status == 200 else ("unknown", None)
        if status == 404 and answer == {"error": "no such payment"}:
            verdict = "not_applied"
        logging.info("%s: read %s, hence %s", message["key"], kind or status, verdict)
        evidence = Jsonb({"read": kind or f"http:{status}", "answer": answer})
        return self.tell("idem_resolve", message, verdict=verdict, result=result, evidence=evidence)

    def tell(self, function, message, **given):
        """Says what became of a message; False where it is no longer ours."""
        names = "".join(f", {name} => %({name})s" for name in given)
        try:
            self.call(f"SELECT {function}(%(key)s, scope => %(scope)s, fence => %(fence)s{names})", message | given)
            return True
        except psycopg.Error as error:
            kept = {name: value for name, value in given.items() if not isinstance(value, Jsonb)}
            if error.sqlstate in NOT_STORABLE and kept != given:
                return self.tell(function, message, **kept)
            if error.sqlstate not in NOT_OURS:
                raise
            logging.warning("%s: %s: %s", message["key"], function, error.diag.message_primary)
            return False

    def call(self, statement, parameters):
        """One statement, committed when it returns: nothing is sent under a claim that a crash could undo."""
        # Repeated where the connection breaks: what was heard already changes nothing when it is said again, and what
        # a dispatch took but could not hand over comes again when its lease has ended.
        pause_s = 0.1
        while True:
            try:
                if self.connection is None or self.connection.closed:
                    self.connection = psycopg.connect(DATABASE, **CONNECT)
                return self.connection.execute(statement, parameters).fetchall()
            except psycopg.OperationalError as error:
                if self.is_stopping and self.is_polling:
                    return []
                is_broken = self.connection is None or self.connection.closed
                if time.monotonic() > self.stop_at or not (is_broken or error.sqlstate in ("40001", "40P01")):
                    raise
                logging.warning("database: %s", error)
                time.sleep(pause_s * random.uniform(0.5, 1))
                pause_s = min(2 * pause_s, PAUSE_S_MAX)

    def stop(self, *_):
        self.is_stopping, self.stop_at = True, time.monotonic() + STOP_S_MAX
        if self.is_polling and self.connection is not None and not self.connection.closed:
            self.connection.cancel()


def request(method, path, key, payload=None):
    """One request, never repeated: its status and answer, and what kind of failure it was unless it succeeded."""
    scheme = http.client.HTTPSConnection if API.scheme == "https" else http.client.HTTPConnection
    client, is_connected = scheme(API.hostname, API.port, timeout=HTTP_TIMEOUT_S), False
    try:
        client.connect()
        is_connected = True
        client.request(method, API.path.rstrip("/") + path, None if payload is None else json.dumps(payload),
                       {"Idempotency-Key": key, "Content-Type": "application/json"})
        response = client.getresponse()
        text = response.read(BODY_BYTES_MAX).decode(errors="replace")
        answer = json.loads(text) if response.headers.get_content_type() == "application/json" else text
    except (OSError, http.client.HTTPException, ValueError) as error:  # ValueError: JSON that was cut short
        kinds = AFTER if is_connected else BEFORE
        return None, None, next(kind for raised, kind in kinds.items() if isinstance(error, raised))
    finally:
        client.close()
    return response.status, answer, None if response.status in (200, 201) else f"http:{response.status}"


def main(dispatcher):
    if LEASE_S <= HTTP_TIMEOUT_S + SETTLE_S:
        raise SystemExit("DISPATCH_LEASE_S must be longer than DISPATCH_HTTP_TIMEOUT_S and DISPATCH_SETTLE_S together")
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    signal.signal(signal.SIGTERM, dispatcher.stop)
    logging.info("delivering %s to %s", DESTINATION, API.geturl())
    dispatcher.run()


if __name__ == "__main__":
    main(Dispatcher())
