"""The kinds of keys that the clients work on. A key is '<family>:<number>', or '<family>:<run>:<number>' of a run."""

from dataclasses import dataclass

DAY_US = 86_400_000_000


@dataclass(frozen=True)
class Family:
    name: str
    scope: str
    effect_kind: str
    # How long an outcome guards its key.
    window_us: int
    # The effect is a row of table ledger, or an entry of the provider's.
    is_outside: bool
    policies: str = ""


TX = Family("tx", "chaos_tx", "local", 30 * DAY_US, False)
SHORT = Family("short", "chaos_short", "local", 1_000_000, False)
RUN = Family("run", "chaos_run", "local", 1_000_000, False)
LEASED = Family("leased", "chaos_leased", "local", 30 * DAY_US, False)
OUTSIDE = Family("outside", "chaos_outside", "external", 30 * DAY_US, True)
KEYED = Family("keyed", "chaos_keyed", "keyed", 30 * DAY_US, True, ", provider_window => '400 ms'")
BOX = Family("box", "chaos_box", "external", 30 * DAY_US, True,
             ", backoff => '20 ms', max_backoff => '100 ms', max_attempts => 1000, max_reconciles => 1000")

FAMILIES = {family.name: family for family in (TX, SHORT, RUN, LEASED, OUTSIDE, KEYED, BOX)}


def family_of(key: str) -> Family:
    return FAMILIES[key.split(":", 1)[0]]


def run_of(key: str) -> str | None:
    parts = key.split(":")
    return f"run-{parts[1]}" if parts[0] == RUN.name else None
