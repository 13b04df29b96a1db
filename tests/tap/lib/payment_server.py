"""A payment server for tests and the demo: it pays what it is asked to pay, twice if it is asked twice.

POST /payments         {"amount": 12.5}, header Idempotency-Key    201 {"id", "key", "amount"}; 422 for a bad amount
GET  /payments/<key>   200 and the first payment of that key, or 404 {"error": "no such payment"}

It keeps no key from being paid again: that is for the test to find out. Each payment and request is a line of JSON in
--log, written before anything is answered; a server that died and is started again reads its payments there.

What goes wrong is drawn for each connection by --faults, as NAME=PER MILLE, ... with --seed; or, for the first ones,
listed by --first:
    busy     429, nothing done                    close    closed before anything is read
    fail     500, nothing done                    error    500 after the work is done
    die      dies before the work                 death    dies after it
    timeout  does the work and never answers      answer   all goes well
"""
import argparse
import http.server
import json
import os
import random
import socket
import struct
import threading
from urllib.parse import unquote

PATIENCE_S = 10
FAULTS = ("busy", "close", "fail", "error", "die", "death", "timeout", "answer")


class Log:
    def __init__(self, path):
        self.lock = threading.Lock()
        self.file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        with open(path, encoding="utf-8") as lines:
            # A line that a death cut short was never answered; there is none, as each is one write.
            entries = [json.loads(line) for line in lines]
        self.first_payments = {}
        for entry in entries:
            self.remember(entry)
        self.payment_count = sum(entry["what"] == "payment" for entry in entries)
        self.start_count = sum(entry["what"] == "start" for entry in entries)
        self.write({"what": "start"})

    def remember(self, entry):
        if entry["what"] == "payment":
            self.first_payments.setdefault(entry["key"], {name: entry[name] for name in ("id", "key", "amount")})

    def write(self, entry):
        line = (json.dumps(entry) + "\n").encode()
        if os.write(self.file, line) != len(line):
            raise OSError("the log is full")

    def pay(self, key, amount, fault):
        with self.lock:
            self.payment_count += 1
            entry = {"what": "payment", "id": self.payment_count, "key": key, "amount": amount, "fault": fault}
            self.write(entry)
            self.remember(entry)
            return {"id": entry["id"], "key": key, "amount": amount}


class Arrivals:
    """A read is answered after the work of every request that arrived before it, as if there were one thread."""

    def __init__(self):
        self.changed = threading.Condition()
        self.count = 0
        self.at_work = set()

    def begin(self):
        with self.changed:
            self.count += 1
            self.at_work.add(self.count)
            return self.count

    def end(self, number):
        with self.changed:
            self.at_work.discard(number)
            self.changed.notify_all()

    def wait_for_earlier(self, number):
        with self.changed:
            self.changed.wait_for(lambda: min(self.at_work) >= number, timeout=PATIENCE_S)


class Server(http.server.ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def __init__(self, address, log, faults, first, seed):
        super().__init__(address, Handler)
        self.log = log
        self.arrivals = Arrivals()
        self.first = list(first)
        self.faults = faults
        # Not the same faults again after each death.
        self.random = random.Random(f"{seed}/{log.start_count}")

    def draw(self):
        if self.first:
            return self.first.pop(0)
        drawn = self.random.randrange(1000)
        for name, per_mille in self.faults.items():
            drawn -= per_mille
            if drawn < 0:
                return name
        return "answer"

    def process_request(self, request, client_address):
        """In the one thread that accepts: what comes first is counted first."""
        fault = self.draw()
        if fault == "close":
            self.log.write({"what": "closed"})
            request.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            request.close()
            return
        number = self.arrivals.begin()
        arguments = (request, client_address, fault, number)
        threading.Thread(target=self.serve, args=arguments, daemon=True).start()

    def serve(self, request, client_address, fault, number):
        try:
            Handler(request, client_address, self, fault, number)
        except OSError:
            pass  # the client is gone
        finally:
            self.arrivals.end(number)
            self.shutdown_request(request)


class Handler(http.server.BaseHTTPRequestHandler):
    timeout = PATIENCE_S

    def __init__(self, request, client_address, server, fault, number):
        self.fault = fault
        self.number = number
        super().__init__(request, client_address, server)

    def do_POST(self):
        key = self.headers["Idempotency-Key"]
        amount = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["amount"]
        self.server.log.write({"what": "request", "method": "POST", "key": key, "fault": self.fault})
        if amount <= 0:
            return self.answer(422, {"error": "amount must be positive"})
        self.perhaps_before_the_work()
        if self.fault in ("busy", "fail"):
            return self.answer(429 if self.fault == "busy" else 500, {"error": self.fault})
        payment = self.server.log.pay(key, amount, self.fault)
        self.server.arrivals.end(self.number)
        self.perhaps_after_the_work()
        return self.answer(500, {"error": "sorry"}) if self.fault == "error" else self.answer(201, payment)

    def do_GET(self):
        key = unquote(self.path.removeprefix("/payments/"))
        self.server.log.write({"what": "request", "method": "GET", "key": key, "fault": self.fault})
        self.server.arrivals.wait_for_earlier(self.number)
        self.perhaps_before_the_work()
        self.server.arrivals.end(self.number)
        self.perhaps_after_the_work()
        if self.fault in ("busy", "fail", "error"):
            return self.answer(503, {"error": self.fault})
        payment = self.server.log.first_payments.get(key)
        return self.answer(200, payment) if payment else self.answer(404, {"error": "no such payment"})

    def perhaps_before_the_work(self):
        if self.fault == "die":
            os._exit(1)

    def perhaps_after_the_work(self):
        if self.fault == "death":
            os._exit(1)
        if self.fault == "timeout":
            self.connection.settimeout(PATIENCE_S)
            self.rfile.read(1)  # until the client gives up
            raise ConnectionAbortedError

    def answer(self, status, body):
        text = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *_):
        pass


def faults(text):
    pairs = [pair.split("=") for pair in text.split(",") if pair]
    if not all(name in FAULTS for name, _ in pairs):
        raise argparse.ArgumentTypeError(f"one of {', '.join(FAULTS)}")
    return {name: int(per_mille) for name, per_mille in pairs}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--log", required=True)
    parser.add_argument("--port", type=int, default=0, help="any free one where not given")
    parser.add_argument("--port-file", help="where to say which port it is, once it listens")
    parser.add_argument("--faults", type=faults, default={})
    parser.add_argument("--first", type=lambda text: text.split(","), default=[])
    parser.add_argument("--seed", default="1")
    given = parser.parse_args()
    server = Server(("127.0.0.1", given.port), Log(given.log), given.faults, given.first, given.seed)
    if given.port_file:
        with open(given.port_file + ".new", "w", encoding="ascii") as file:
            file.write(f"{server.server_address[1]}\n")
        os.rename(given.port_file + ".new", given.port_file)
    server.serve_forever(poll_interval=10)
