"""The journals, read back: every step of every client, with the moments between which it happened."""

import json
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from families import Family, family_of

NEVER = math.inf


@dataclass(eq=False)
class Step:
    """One request. It happened, if it did, between the moments `called` and `over` (seconds by a clock that nobody sets)."""

    client: str
    number: int
    what: str
    key: str | None
    asked: dict[str, Any]
    called: float
    # The same moments by the machine's clock, in microseconds since 1970.
    called_at: int
    over: float = NEVER
    over_at: int = 1 << 62
    # None: not acknowledged.
    answer: dict[str, Any] | None = None
    # The SQLSTATE of an error: it had no effect.
    sqlstate: str | None = None

    @property
    def is_acknowledged(self) -> bool:
        return self.answer is not None

    def __str__(self) -> str:
        return f"{self.client}#{self.number} {self.what} {self.key or ''} {self.asked} -> {self.sqlstate or self.answer}"


@dataclass(eq=False)
class Grant:
    """Somebody was told to execute or to reconcile."""

    step: Step
    key: str
    fence: int
    decision: str
    claimed_at: int
    lease_expires_at: int | None
    # How the same client ended this claim, acknowledged or not.
    endings: list[Step] = field(default_factory=list)
    renewals: list[Step] = field(default_factory=list)

    @property
    def told(self) -> float:
        return self.step.over


@dataclass(eq=False)
class Said:
    """Somebody was told that a key is finished, and by whom."""

    step: Step
    key: str
    state: str
    op: str


class History:
    def __init__(self, folder: Path) -> None:
        self.steps: list[Step] = []
        for path in sorted(folder.iterdir()):
            self.steps += steps_of(path)
        self.steps.sort(key=lambda step: step.called)
        self.crashes = [step for step in self.steps if step.what in ("crash", "kill_backend")]
        self.clock_steps = [step for step in self.steps if step.what == "step_clock"]
        self.grants = grants_of(self.steps)
        self.said = said_of(self.steps)
        self.keys = sorted({grant.key for grant in self.grants} | {step.key for step in self.steps if step.key})

    def of(self, *what: str) -> list[Step]:
        return [step for step in self.steps if step.what in what]

    def of_family(self, family: Family) -> list[str]:
        return [key for key in self.keys if family_of(key) is family]


def steps_of(path: Path) -> list[Step]:
    steps: dict[int, Step] = {}
    for text in path.read_text(encoding="utf-8").splitlines():
        line = json.loads(text)
        if "what" in line:
            steps[line["step"]] = Step(path.stem, line["step"], line["what"], line["key"], line["asked"],
                                       line["moment"], line["at"])
            continue
        step = steps[line["step"]]
        if "answer" in line:
            step.answer = line["answer"]
        if "refused" in line:
            step.sqlstate = line["refused"]
        if "lost" not in line:
            step.over, step.over_at = line["moment"], line["at"]
    return list(steps.values())


def grants_of(steps: list[Step]) -> list[Grant]:
    grants: list[Grant] = []
    by_fence: dict[tuple[str, str, int], Grant] = {}
    for step in steps:
        rows = (step.answer or {}).get("rows", []) if step.what in ("claim", "dispatch") else []
        for row in rows:
            if row["decision"] not in ("execute", "reconcile"):
                continue
            key = step.key or row["key"]
            lease_end = row["lease_expires_at"]
            claimed_at = row.get("claimed_at") or lease_end - step.asked["lease_ms"] * 1000
            grant = Grant(step, key, row["fence"], row["decision"], claimed_at, lease_end)
            grants.append(grant)
            by_fence[step.client, key, grant.fence] = grant
        if step.what in ("finish", "renew") and step.key:
            owned = by_fence.get((step.client, step.key, step.asked["fence"]))
            if owned:
                (owned.endings if step.what == "finish" else owned.renewals).append(step)
    return grants


def said_of(steps: list[Step]) -> list[Said]:
    said = []
    for step in steps:
        if step.answer is None or step.key is None:
            continue
        if step.what == "finish" and step.asked["ending"] in ("completed", "rejected"):
            said.append(Said(step, step.key, step.asked["ending"], step.asked.get("result") or step.asked["op"]))
        elif step.what == "once":
            said.append(Said(step, step.key, "completed", step.answer["rows"][0]["result"]["op"]))
        elif step.what in ("claim", "enqueue"):
            row = step.answer["rows"][0]
            state = {"replay": "completed", "rejected": "rejected"}.get(row["decision"])
            if state:
                said.append(Said(step, step.key, state, row["result"]["op"]))
    return said
