"""The server under test: started, crashed, killed in part, its clock moved. The cluster itself is scripts/cluster.sh's."""

import os
import re
import signal
import subprocess
import time
from pathlib import Path

import psycopg

START_SECONDS_MAX = 120


class Server:
    def __init__(self, cluster: Path, clock: "Clock | None") -> None:
        self._data = cluster / "data"
        self._log = cluster / "server.log"
        self._clock = clock
        # Backends that were killed on purpose.
        self.killed: set[int] = set()

    def configure(self, settings: tuple[str, ...]) -> None:
        with open(self._data / "postgresql.conf", "a", encoding="utf-8") as file:
            file.writelines(f"{setting}\n" for setting in settings)

    def start(self) -> None:
        environment = os.environ | {"RUST_BACKTRACE": "1", "LC_ALL": "C"}
        if self._clock:
            environment |= self._clock.environment()
        self._pg_ctl("start", "-l", str(self._log), environment=environment)

    def crash(self) -> None:
        """Every process of it at once, without a checkpoint; recovery when it starts again."""
        self._pg_ctl("stop", "-m", "immediate")

    def stop(self) -> None:
        self._pg_ctl("stop", "-m", "fast")

    def backends(self) -> list[int]:
        """Process ids of the sessions of clients."""
        with psycopg.connect(application_name="driver") as connection:
            rows = connection.execute("SELECT pid FROM pg_stat_activity WHERE backend_type = 'client backend'"
                                      " AND application_name LIKE 'client-%' ORDER BY pid").fetchall()
        return [pid for (pid,) in rows]

    def terminate(self, pid: int) -> None:
        with psycopg.connect(application_name="driver") as connection:
            connection.execute("SELECT pg_terminate_backend(%s)", (pid,))

    def kill_one(self, choice: int) -> None:
        """Kills a backend. The server notices, ends every other session, and recovers; then this returns."""
        pids = self.backends()
        if not pids:
            return
        victim = pids[choice % len(pids)]
        self.killed.add(victim)
        deadline = time.monotonic() + START_SECONDS_MAX
        try:
            os.kill(victim, signal.SIGKILL)
            # Until the postmaster has reaped it. From then on it turns connections away until it has recovered.
            while time.monotonic() < deadline:
                os.kill(victim, 0)
                time.sleep(0.001)
        except ProcessLookupError:
            self.until_it_answers()

    def until_it_answers(self) -> None:
        deadline = time.monotonic() + START_SECONDS_MAX
        while True:
            try:
                psycopg.connect(application_name="driver").close()
                return
            except psycopg.OperationalError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.02)

    def faults(self) -> list[str]:
        """What no server log of a run may show: errors of its own, and the end of a process that was not killed here."""
        sign = re.compile(r" XX000 +(ERROR|FATAL|WARNING):|PANIC: |TRAP: |stack backtrace|terminated by signal")
        on_purpose = re.compile(r"\(PID (\d+)\) was terminated by signal 9\b")
        lines = self._log.read_text(encoding="utf-8", errors="replace").splitlines()
        return [line for line in lines if sign.search(line)
                and not ((found := on_purpose.search(line)) and int(found[1]) in self.killed)]

    def _pg_ctl(self, *arguments: str, environment: dict[str, str] | None = None) -> None:
        subprocess.run([f"{os.environ['PG_BINDIR']}/pg_ctl", "-s", "-w", "-t", str(START_SECONDS_MAX),
                        "-D", str(self._data), *arguments], check=True, env=environment, stdin=subprocess.DEVNULL)


class Clock:
    """tests/clock/clock.c in front of the server, and the file that says how far its clock is off."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / "clock"
        self.set(0)

    def set(self, seconds: int) -> None:
        new = self._file.with_suffix(".new")
        new.write_text(f"{seconds * 1_000_000}\n", encoding="ascii")
        new.rename(self._file)

    def environment(self) -> dict[str, str]:
        return {"LD_PRELOAD": os.environ["CLOCK_LIBRARY"], "CLOCK_FILE": str(self._file)}
