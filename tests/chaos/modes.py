"""In which settings the same chaos happens."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Mode:
    name: str
    # Whether an acknowledged transaction of an inside effect may be forgotten by a crash.
    may_forget: bool
    # Whether the server's clock jumps.
    clock_jumps: bool
    settings: tuple[str, ...]


WITH_WORKER = ("shared_preload_libraries = 'idempotency'", "idempotency.naptime = '100ms'")

MODES = {
    mode.name: mode
    for mode in (
        Mode("sync", False, False, ("synchronous_commit = on", *WITH_WORKER)),
        # A slow WAL writer, so that a crash forgets much.
        Mode("async", True, False, ("synchronous_commit = off", "wal_writer_delay = '2s'")),
        Mode("clock", False, True, ("synchronous_commit = on", *WITH_WORKER)),
    )
}

COMMON_SETTINGS = (
    "fsync = on",
    "restart_after_crash = on",
    "deadlock_timeout = '30ms'",
    "max_connections = 60",
    "log_min_messages = warning",
    "log_min_error_statement = panic",
)
