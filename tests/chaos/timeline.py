"""What is certain of time: how far the server's clock had come, how long an outcome guards its key, what a crash may forget."""

from collections import defaultdict
from typing import Any

from families import RUN, family_of
from history import NEVER, History, Said, Step
from modes import Mode

Row = dict[str, Any]


class Timeline:
    def __init__(self, history: History, ledger: list[Row], mode: Mode, looked: float) -> None:
        """`looked`: the moment after which nobody read the tables any more. A sweep may have pruned until then."""
        self._history = history
        self._mode = mode
        self._last = max(looked, *(step.over for step in history.steps if step.over != NEVER))
        first = history.steps[0]
        self._epoch_us = first.called_at - int(first.called * 1_000_000)
        self.step_of_op = {(step.key, step.asked["op"]): step
                           for step in reversed(history.of("finish", "once")) if step.key}
        self.rows: dict[str, list[Row]] = defaultdict(list)
        for row in ledger:
            self.rows[row["key"]].append(row)
        self.row_of_op = {(row["key"], row["op"]): row for row in ledger}
        self._durable = sorted(self._durable_steps(), key=lambda step: step.called)
        self._alive = self._lives_of_runs()

    # --- the server's clock -----------------------------------------------------------------------------------------

    def clock_before(self, claimed_at: int | None, since: float, over: float) -> int:
        """What the server's clock had shown, at most, when a decision was made between these moments."""
        if not self._mode.clock_jumps:
            return claimed_at if claimed_at is not None else self._machine_clock(over)
        # Of a moment far ahead that came and went the record was pruned.
        latest, offset = 0, 0
        begin = 0.0
        for jump in self._history.clock_steps:
            if jump.over >= since:
                latest = max(latest, self._machine_clock(min(jump.over, over)) + offset)
            offset, begin = jump.asked["offset"] * 1_000_000, jump.called
            if begin > over:
                return latest
        return max(latest, self._machine_clock(over) + offset)

    def _machine_clock(self, moment: float) -> int:
        return self._epoch_us + int(min(moment, self._last) * 1_000_000)

    # --- windows ----------------------------------------------------------------------------------------------------

    def guarded_until(self, key: str, finished_at: int) -> int:
        """Until when an outcome of this key, finished no sooner than then, certainly guards it."""
        window = family_of(key).window_us
        guard = finished_at + window
        if family_of(key) is RUN and not self._mode.clock_jumps:
            for begun, over, adds_window in self._alive[f"run-{key.split(':')[1]}"]:
                if begun <= guard and over > finished_at:
                    guard = max(guard, over + (window if adds_window else 0))
        return guard

    def _lives_of_runs(self) -> dict[str, list[tuple[int, int, bool]]]:
        """From when until when each run lived for certain, and whether that its end counts is certain as well."""
        lives: dict[str, list[tuple[int, int, bool]]] = defaultdict(list)
        ends = [step for step in self._history.of("run_end") if step.sqlstate is None]
        for begin in self._history.of("run_begin"):
            if not begin.is_acknowledged:
                continue
            run = begin.asked["run"]
            over = min((end.called_at for end in ends if end.asked["run"] == run and end.over >= begin.called),
                       default=1 << 62)
            if self.may_be_forgotten(begin):
                # Its end, too, where that came before the crash.
                crash = min(crash.called_at for crash in self._history.crashes if crash.over >= begin.called)
                lives[run].append((begin.over_at, min(over, crash), False))
            else:
                lives[run].append((begin.over_at, over, over < 1 << 62))
        return {run: sorted(found) for run, found in lives.items()} | {f"run-{n}": [] for n in range(9) if f"run-{n}" not in lives}

    # --- crashes ----------------------------------------------------------------------------------------------------

    def may_be_forgotten(self, step: Step) -> bool:
        """Whether a crash may have taken away what was acknowledged. It takes the end of the log: what came before
        something that outlived the crash outlived it, too. An answer from before the crash may be read after it."""
        if not self._mode.may_forget:
            return False
        crash = next((crash for crash in self._history.crashes if crash.over >= step.called), None)
        if crash is None:
            return False
        return not any(step.over <= later.called and later.over <= crash.called for later in self._durable)

    def forgotten(self, said: list[Said]) -> int:
        """How much was forgotten."""
        return sum(not family_of(one.key).is_outside and (one.key, one.op) not in self.row_of_op for one in said)

    def crash_between(self, begin: float, end: float) -> bool:
        return self._mode.may_forget and any(crash.over >= begin and crash.called <= end for crash in self._history.crashes)

    def _durable_steps(self) -> list[Step]:
        """Claims of outside effects, which wait for the disk in every mode, and what is in the ledger after all."""
        outside = {grant.step for grant in self._history.grants if family_of(grant.key).is_outside}
        kept = {step for place, step in self.step_of_op.items() if place in self.row_of_op and step.is_acknowledged}
        return list(outside | kept)
