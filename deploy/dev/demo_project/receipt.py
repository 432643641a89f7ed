"""Prints who pays what."""

from split import split


def receipt(total_cents: int, names: list[str]) -> str:
    """One line a person, in the order of the names."""
    shares = split(total_cents, len(names))
    return "\n".join(f"{name}: {money(share)}" for name, share in zip(names, shares, strict=True))


def money(cents: int) -> str:
    """`1234` as `12.34`."""
    return f"{cents // 100}.{cents % 100:02d}"
