"""How a language model is asked to write. Imports no torch."""

from dataclasses import dataclass

from modules.errors import InvalidValueError

RANGES = {
    "max_tokens": (1, 1024),
    "temperature": (0.0, 5.0),
    "top_p": (0.0, 1.0),
    "top_k": (0, 1000),
    "seed": (0, 2**63 - 1),
}


@dataclass(frozen=True)
class WriteOptions:
    """How tokens are chosen: the likeliest (`temperature` 0), or drawn by `seed` from the `top_k` likeliest (0: all)
    that are together as likely as `top_p`. Raises `InvalidValueError` for values beyond `RANGES`."""

    max_tokens: int = 300
    temperature: float = 0.7
    top_p: float = 0.9
    top_k: int = 20
    seed: int = 0

    def __post_init__(self) -> None:
        for name, (low, high) in RANGES.items():
            if not low <= getattr(self, name) <= high:
                raise InvalidValueError(f"{name} is {getattr(self, name)}; it must be {low} to {high}.")
