"""The invariants of README.md, in its order. Each gives back what speaks against it: nothing, where it holds."""

import heapq
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TypeVar

from families import BOX, FAMILIES, RUN, SHORT, family_of, run_of
from history import Grant, History, Said, Step
from modes import Mode
from timeline import Row, Timeline

T = TypeVar("T")
DOCUMENTED = {"ID002", "ID003", "ID004", "ID005", "ID006", "40001", "40P01", "55P03", "57014", "42704", "rolled back"}
FINISHED = ("completed", "rejected")


@dataclass
class World:
    """All that is known when it is over."""

    mode: Mode
    history: History
    timeline: Timeline
    records: dict[str, Row]
    orders: dict[str, list[str]]
    provider: dict[str, list[str]]
    # What could not be driven to an end, and what a fence that is not the newest could.
    stuck: list[str]
    late: list[str]
    complaints: list[str]

    def grants_by_key(self) -> dict[str, list[Grant]]:
        return grouped(self.history.grants, lambda grant: grant.key)


def one_effect(world: World) -> Iterable[str]:
    """1"""
    for key, rows in world.timeline.rows.items():
        for first, second in zip(rows, rows[1:], strict=False):
            until = world.timeline.guarded_until(key, first["at"])
            begun, ended = (world.timeline.step_of_op[key, row["op"]] for row in (first, second))
            claimed_at = second["claimed_at"] or second["at"]
            if world.timeline.clock_before(claimed_at, begun.called, ended.over) < until:
                yield f"{key}: {second['op']} had its effect {until - claimed_at} us before the end of the window of {first['op']}"
    for key, effects in world.provider.items():
        if len(effects) > 1:
            yield f"{key}: the provider did it for {effects}"


def together(world: World) -> Iterable[str]:
    """2"""
    timeline = world.timeline
    for key, rows in timeline.rows.items():
        last = rows[-1]
        record = world.records.get(key)
        if record and record["op"] == last["op"] and record["state"] == last["state"]:
            continue
        if timeline.clock_before(None, timeline.step_of_op[key, last["op"]].called, float("inf")) < timeline.guarded_until(key, last["at"]):
            yield f"{key}: {last['op']} had its effect, its record is {record}"
    for key, record in world.records.items():
        if record["state"] not in FINISHED:
            continue
        if family_of(key).is_outside:
            done = world.provider.get(key, [])
            if done != ([record["op"]] if record["state"] == "completed" else []):
                yield f"{key}: the record is {record}, the provider did {done}"
        elif (key, record["op"]) not in timeline.row_of_op:
            yield f"{key}: the record is {record}, and there is no such effect"


def same_result(world: World) -> Iterable[str]:
    """3"""
    timeline = world.timeline
    for step in world.history.of("finish"):
        stored = (step.answer or {}).get("result")
        if stored and stored["op"] != (step.asked.get("result") or step.asked["op"]):
            yield f"{step}: it was told the result of another"
    for key, said in grouped(world.history.said, lambda one: one.key).items():
        if family_of(key).is_outside:
            kept = [one for one in said if one.state == "completed" or not timeline.may_be_forgotten(one.step)]
            if len({(one.state, one.op) for one in kept}) > 1:
                yield f"{key}: it was told " + ", ".join(sorted({f'{one.state} {one.op}' for one in kept}))
            continue
        place = {row["op"]: number for number, row in enumerate(timeline.rows[key])}
        for one in said:
            row = timeline.row_of_op.get((key, one.op))
            if row and row["state"] != one.state:
                yield f"{one.step}: it was told {one.state}, the effect says {row['state']}"
            if (key, one.op) not in timeline.step_of_op:
                yield f"{one.step}: it was told a result that nobody gave"
        for newest, one in with_newest_before(said, lambda one: (one.step.called, one.step.over), lambda one: place.get(one.op, -1)):
            if one.op in place and place[one.op] < place.get(newest.op, -1):
                yield f"{one.step}: it was told an older result than {newest.step}"


def not_lost(world: World) -> Iterable[str]:
    """4"""
    for one in world.history.said:
        if family_of(one.key).is_outside:
            record = world.records.get(one.key)
            if (record and record["state"] == one.state and record["op"] == one.op) or world.timeline.may_be_forgotten(one.step):
                continue
            yield f"{one.step}: it was told {one.state}, the record is {record}"
        elif (one.key, one.op) not in world.timeline.row_of_op and not world.timeline.may_be_forgotten(one.step):
            yield f"{one.step}: it was told {one.state}, and there is no such effect"


def not_forgotten(world: World) -> Iterable[str]:
    """5"""
    timeline = world.timeline
    answers = grouped(world.history.of("claim", "once", "enqueue"), lambda step: step.key or "")
    dispatched = world.grants_by_key()
    for key, said in first_of_each_op(world.history.said).items():
        asked = sorted({*answers[key], *(grant.step for grant in dispatched[key])}, key=lambda step: step.called)
        for one in said:
            row = timeline.row_of_op.get((key, one.op))
            if row is None and not family_of(key).is_outside:
                continue
            until = timeline.guarded_until(key, row["at"] if row else one.step.called_at)
            begun = timeline.step_of_op[key, one.op].called if row else one.step.called
            for step in asked:
                if step.called < one.step.over:
                    continue
                if not world.mode.clock_jumps and step.called_at > until:
                    break
                if row and is_told_to_wait(world, step, key, row["at"]):
                    continue
                if not says_otherwise(step, key) or (family_of(key).is_outside and timeline.crash_between(one.step.called, step.over)):
                    continue
                if timeline.clock_before(claimed_at_of(step, key), begun, step.over) < until:
                    yield f"{step}: after {one.step}, {until - step.called_at} us before the end of its window"


def says_otherwise(step: Step, key: str) -> bool:
    """Whether an answer denies that its key is finished."""
    if step.what == "once":
        return step.sqlstate in ("ID002", "ID005")
    row = row_of(step, key)
    return row is not None and row["decision"] not in ("replay", "rejected")


def is_told_to_wait(world: World, step: Step, key: str, finished_at: int) -> bool:
    """Of a key whose own window is over, and which its run alone keeps, who does not get the lock is told `in_progress`: whoever
    has it may have seen the run ended. Nothing is executed by that answer."""
    row = row_of(step, key)
    waits = step.sqlstate == "ID002" or (row is not None and row.get("decision") == "in_progress")
    own_window_ends = finished_at + family_of(key).window_us
    return waits and run_of(key) is not None and (world.mode.clock_jumps or step.over_at >= own_window_ends)


def row_of(step: Step, key: str) -> Row | None:
    rows = (step.answer or {}).get("rows", [])
    return next((row for row in rows if row.get("key", key) == key), None)


def claimed_at_of(step: Step, key: str) -> int | None:
    return (row_of(step, key) or {}).get("claimed_at")


def fences_grow(world: World) -> Iterable[str]:
    """6"""
    for key, grants in world.grants_by_key().items():
        seen: dict[int, Grant] = {}
        for grant in grants:
            if world.mode.clock_jumps and not is_recorded(grant):
                continue
            if grant.fence in seen:
                yield f"{key}: fence {grant.fence} was given twice: {grant.step} and {seen[grant.fence].step}"
            seen[grant.fence] = grant
        # Where the clock goes back, only what is on record sends a fence on.
        before = [grant for grant in grants if not world.mode.clock_jumps or is_recorded(grant)]
        for newest, grant in with_newest_before(before, lambda one: (one.step.called, one.step.over), lambda one: one.fence):
            if grant.fence <= newest.fence:
                yield f"{key}: the fence went back from {newest.step} to {grant.step}"


def is_recorded(grant: Grant) -> bool:
    """Whether its fence is certainly on record from the grant, or its end, on."""
    if family_of(grant.key) in (SHORT, RUN) or any(end.asked["ending"] == "released" for end in grant.endings):
        return False
    return grant.lease_expires_at is not None or any(
        end.is_acknowledged and end.asked["ending"] != "rolled_back" for end in grant.endings)


def only_the_newest(world: World) -> Iterable[str]:
    """7"""
    yield from world.late
    for key, grants in world.grants_by_key().items():
        for old in grants:
            if old.lease_expires_at is None:
                continue
            for new in grants:
                is_newer = new.step.called >= old.told if world.mode.clock_jumps else new.fence > old.fence
                if not is_newer or (new_since := recorded_at(new)) is None:
                    continue
                if world.timeline.may_be_forgotten(new.endings[0] if new.lease_expires_at is None else new.step):
                    if not (family_of(key).is_outside and new.lease_expires_at is not None):
                        continue
                for step in (*old.endings, *old.renewals):
                    if step.is_acknowledged and step.called >= new_since:
                        yield f"{step}: its fence was taken over by {new.step}"


def recorded_at(grant: Grant) -> float | None:
    """From which moment its fence stands in the table for certain."""
    if grant.lease_expires_at is not None:
        return grant.told
    return next((end.over for end in grant.endings if end.is_acknowledged and end.asked["ending"] in (*FINISHED, "not_applied")), None)


def one_owner(world: World) -> Iterable[str]:
    """8"""
    for key, grants in world.grants_by_key().items():
        held = sorted((grant.told, grant.endings[0].called, number, grant) for number, grant in enumerate(grants)
                      if grant.lease_expires_at is None and grant.endings and grant.endings[0].is_acknowledged)
        latest: tuple[float, Grant] | None = None
        for told, until, _, grant in held:
            if latest and told < latest[0]:
                yield f"{key}: {grant.step} and {latest[1].step} owned it at once"
            latest = max(latest or (until, grant), (until, grant), key=lambda pair: pair[0])
        leased = [grant for grant in grants if grant.lease_expires_at is not None]
        for grant in leased:
            for other in grants:
                clock = world.timeline.clock_before(other.claimed_at, grant.step.called, other.told)
                if other.step.called >= grant.told and clock < lease_end(world, grant, other):
                    yield f"{other.step}: under the lease of {grant.step}"
            for told, until, _, other in held:
                if told <= grant.step.called and grant.told <= until:
                    yield f"{grant.step}: in the transaction of {other.step}"


def lease_end(world: World, grant: Grant, other: Grant) -> int:
    """Until when a lease held others off for certain, as its owner was told, when another one claimed."""
    if any(end.called < other.told for end in grant.endings):
        return 0
    if not family_of(grant.key).is_outside and world.timeline.crash_between(grant.step.called, other.told):
        return 0
    end = grant.lease_expires_at or 0
    for renewal in grant.renewals:
        if renewal.called >= other.told or renewal.sqlstate:
            continue
        if renewal.answer is None or renewal.over > other.step.called:
            end = 0
        else:
            end = renewal.answer["rows"][0]["until"]
    return end


def messages(world: World) -> Iterable[str]:
    """9"""
    written = [step for step in world.history.of("enqueue") if step.answer and step.answer["rows"][0]["enqueued"]]
    for key, ops in world.orders.items():
        if len(ops) > 1:
            yield f"{key}: enqueued for {ops}"
        record = world.records.get(key)
        if record is None or record["state"] not in FINISHED:
            yield f"{key}: its row is there, its message was not delivered: {record}"
    for key in {*world.provider, *world.records}:
        if family_of(key) is BOX and key not in world.orders:
            yield f"{key}: a message without its row"
    for step in written:
        if step.key not in world.orders and not world.timeline.may_be_forgotten(step):
            yield f"{step}: its row and its message are gone"
    yield from in_order(world, written)


def in_order(world: World, written: list[Step]) -> Iterable[str]:
    """Messages of one ordering key: the next is delivered when the one before is finished."""
    grants = world.grants_by_key()
    ended: dict[str, float] = {}
    for step in world.history.of("finish", "resolve"):
        if step.key and step.sqlstate is None and step.asked.get("ending", "completed") in FINISHED:
            ended[step.key] = min(ended.get(step.key, step.called), step.called)
    for line, steps in grouped([step for step in written if step.asked["line"]], lambda step: step.asked["line"]).items():
        kept = [step for step in steps if world.orders.get(step.key or "") == [step.asked["op"]]]
        for number, before in enumerate(kept):
            end = ended.get(before.key or "", float("inf"))
            for after in kept[number + 1:]:
                for grant in grants[after.key or ""]:
                    if before.over <= after.called and grant.told < end:
                        yield f"{grant.step}: delivered before {before.key} of {line} was finished"


def none_stuck(world: World) -> Iterable[str]:
    """10"""
    yield from world.stuck


def documented_errors(world: World) -> Iterable[str]:
    """11"""
    for step in world.history.steps:
        if step.sqlstate is not None and step.sqlstate not in DOCUMENTED:
            yield str(step)
    yield from world.complaints


def much_happened(world: World) -> Iterable[str]:
    """12"""
    finished = {family_of(one.key).name for one in world.history.said}
    yield from (f"family {name}: nothing was finished" for name in FAMILIES if name not in finished)
    decisions = {row["decision"] for step in world.history.of("claim", "dispatch") for row in (step.answer or {}).get("rows", [])}
    yield from (f"nobody was told {word}" for word in ("execute", "replay", "in_progress", "reconcile") if word not in decisions)
    for what in ("kill_client", "pause_client", "terminate_backend", "crash", "kill_backend"):
        if not world.history.of(what):
            yield f"there was no {what}"
    if world.mode.clock_jumps and not world.history.clock_steps:
        yield "the clock never jumped"


INVARIANTS: dict[str, Callable[[World], Iterable[str]]] = {
    "1 a key has one effect within its window": one_effect,
    "2 effect and record are there together": together,
    "3 a result that was told does not change": same_result,
    "4 what was acknowledged is not lost": not_lost,
    "5 who asks within the window is told what was done": not_forgotten,
    "6 fences grow": fences_grow,
    "7 a fence that is not the newest ends nothing": only_the_newest,
    "8 a key has one owner at a time": one_owner,
    "9 a message commits with its row, and is delivered, in order": messages,
    "10 no key is stuck": none_stuck,
    "11 every error is a documented one": documented_errors,
    "12 all of it was tried": much_happened,
}


# --- helpers --------------------------------------------------------------------------------------------------------

def grouped(items: Iterable[T], key: Callable[[T], str]) -> defaultdict[str, list[T]]:
    groups: defaultdict[str, list[T]] = defaultdict(list)
    for item in items:
        groups[key(item)].append(item)
    return groups


def first_of_each_op(said: list[Said]) -> dict[str, list[Said]]:
    """Who was first told of each finish of a key."""
    first: dict[tuple[str, str], Said] = {}
    for one in sorted(said, key=lambda one: one.step.over):
        first.setdefault((one.key, one.op), one)
    return grouped(first.values(), lambda one: one.key)


def with_newest_before(items: list[T], moments: Callable[[T], tuple[float, float]], rank: Callable[[T], int]) -> Iterable[tuple[T, T]]:
    """Each item, with the one of highest rank among those that were over before it was called."""
    finished: list[tuple[float, int, T]] = []
    newest: T | None = None
    for number, item in enumerate(sorted(items, key=moments)):
        called, over = moments(item)
        while finished and finished[0][0] <= called:
            candidate = heapq.heappop(finished)[2]
            if newest is None or rank(candidate) > rank(newest):
                newest = candidate
        if newest is not None:
            yield newest, item
        heapq.heappush(finished, (over, number, item))
