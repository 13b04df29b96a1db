"""The server under test: started, crashed, killed in part, its clock moved. The cluster itself is scripts/cluster.sh's."""

import glob
import os
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
        with psycopg.connect(application_name="driver") as witness:
            pids = self.backends()
            if not pids:
                return
            os.kill(pids[choice % len(pids)], signal.SIGKILL)
            deadline = time.monotonic() + START_SECONDS_MAX
            try:
                while time.monotonic() < deadline:
                    witness.execute("SELECT")
                    time.sleep(0.01)
            except psycopg.OperationalError:
                self._until_it_answers(deadline)

    def _until_it_answers(self, deadline: float) -> None:
        while True:
            try:
                psycopg.connect(application_name="driver").close()
                return
            except psycopg.OperationalError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.02)

    def log_lines(self) -> list[str]:
        return self._log.read_text(encoding="utf-8", errors="replace").splitlines()

    def _pg_ctl(self, *arguments: str, environment: dict[str, str] | None = None) -> None:
        subprocess.run([f"{os.environ['PG_BINDIR']}/pg_ctl", "-s", "-w", "-t", str(START_SECONDS_MAX),
                        "-D", str(self._data), *arguments], check=True, env=environment, stdin=subprocess.DEVNULL)


class Clock:
    """libfaketime in front of the server, and the file that says how far its clock is off."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / "clock"
        self.set(0)

    def set(self, seconds: int) -> None:
        new = self._file.with_suffix(".new")
        new.write_text(f"{seconds:+d}\n", encoding="ascii")
        new.rename(self._file)

    def environment(self) -> dict[str, str]:
        return {"LD_PRELOAD": libfaketime(), "FAKETIME_TIMESTAMP_FILE": str(self._file), "FAKETIME_NO_CACHE": "1",
                "FAKETIME_DONT_FAKE_MONOTONIC": "1", "DONT_FAKE_MONOTONIC": "1"}


def libfaketime() -> str:
    named = os.environ.get("LIBFAKETIME")
    found = [named] if named else glob.glob("/usr/lib/*/faketime/libfaketime.so.1")
    if not found:
        raise SystemExit("libfaketime is not here: apt-get install faketime")
    return found[0]
