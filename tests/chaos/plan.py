"""Which disturbance comes when: all of it drawn from the seed before anything runs."""

import random
from dataclasses import dataclass

from modes import Mode

# How often each comes, in seconds on average.
EVERY = {
    "kill_client": 0.8,
    "pause_client": 1.5,
    "terminate_backend": 0.5,
    "crash": 5.0,
    "kill_backend": 12.0,
}
EVERY_CLOCK_STEP = 1.0
STEPS_SECONDS = (-7200, -600, -30, -2, 0, 2, 30, 600, 7200)
AFTER_ALL_STEPS_SECONDS = max(STEPS_SECONDS) + 3600


@dataclass(frozen=True)
class Disturbance:
    # Seconds after the start.
    at: float
    what: str
    # Chooses the victim among those that are there; of a clock step, how far off the clock is from now on.
    choice: int
    # Seconds that a pause lasts.
    length: float


def plan(seed: str, seconds: float, mode: Mode) -> list[Disturbance]:
    chance = random.Random(f"{seed}:{mode.name}:plan")
    every = dict(EVERY)
    if mode.clock_jumps:
        every["step_clock"] = EVERY_CLOCK_STEP
    disturbances = []
    for what, interval in every.items():
        # The first of each comes for certain.
        at = min(interval, seconds / 2) * (0.5 + chance.random() / 2)
        while at < seconds:
            choice = chance.choice(STEPS_SECONDS) if what == "step_clock" else chance.randrange(1_000_000)
            disturbances.append(Disturbance(at, what, choice, chance.uniform(0.1, 1.2)))
            at += chance.expovariate(1 / interval)
    return sorted(disturbances, key=lambda one: one.at)
