"""What a model call costs, from the operator's price table.

Invariant: a model that is not in the table has no cost, and no cost is null, never 0.

The table (`PERDURE_MODEL_PRICES`) is a JSON file, USD per million tokens by model; `cached` (read from the provider's
cache) and `cache_write` (written into it) default to `input`:

    {"some-model": {"input": 1.25, "cached": 0.13, "cache_write": 1.56, "output": 10.0}}
"""

from collections.abc import Mapping
from pathlib import Path

import msgspec

from libs.contracts.errors import ConfigurationError
from libs.contracts.values import Usage

_TOKENS_PER_UNIT = 1_000_000


class Price(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """USD per million tokens."""

    input: float
    output: float
    cached: float | None = None
    cache_write: float | None = None


Prices = Mapping[str, Price]


def load_prices(path: Path | None) -> Prices:
    """The table in a file; without a file nothing has a price. Raises `ConfigurationError`."""
    if path is None:
        return {}
    try:
        return msgspec.json.decode(path.read_bytes(), type=dict[str, Price])
    except (OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"PERDURE_MODEL_PRICES: {path} is no price table: {error}") from error


def priced(usage: Usage, model: str, prices: Prices) -> Usage:
    """`usage` with the cost of this model."""
    price = prices.get(model)
    if price is None:
        return msgspec.structs.replace(usage, cost_usd=None)
    cached = price.input if price.cached is None else price.cached
    cache_write = price.input if price.cache_write is None else price.cache_write
    cost = (
        (usage.input_tokens - usage.cached_tokens - usage.cache_write_tokens) * price.input
        + usage.cached_tokens * cached
        + usage.cache_write_tokens * cache_write
        + usage.output_tokens * price.output
    ) / _TOKENS_PER_UNIT
    return msgspec.structs.replace(usage, cost_usd=cost)
