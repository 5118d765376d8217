"""How to train a LoRA: sizes, rates, and the weighting of the loss."""

from dataclasses import dataclass

from modules.errors import FeatherweightError, InvalidValueError
from modules.memory.checkpointing import strategy_of

MAX_RANK = 256


class TrainingError(FeatherweightError):
    """Training cannot start or go on: images without captions, numbers that are no longer finite."""

    status = 422


@dataclass(frozen=True, kw_only=True)
class LoraOptions:
    """Rank 0 leaves a group of layers alone. The learning rate warms up, then falls by a cosine over `steps`.

    `rank` is that of the UNet's attention blocks, `text_rank` of the text encoder, `conv_rank` of the UNet's
    convolutions. `alpha` over the rank is the scale of the change; None: alpha is the rank.

    The defaults weight the loss by min-SNR alone (Hang et al. 2023, arXiv:2303.09556). `weight_limit`, `flat_weight`,
    `high_noise_share` and `offset_noise` are explained in `modules.training.loss`; they matter for a style that changes
    the colours of large areas.
    """

    rank: int = 8
    text_rank: int = 8
    conv_rank: int = 0
    alpha: float | None = None
    steps: int = 500
    minutes: float | None = None  # stop after these, whatever the steps
    batch: int = 8
    learning_rate: float = 1e-3
    text_learning_rate: float | None = None  # None: half of the learning rate
    final_rate: float = 0.05  # of the learning rate, at the end
    warmup_steps: int = 20
    weight_decay: float = 1e-2
    empty_prompts: float = 0.1
    weight_limit: float = 1.0
    flat_weight: float = 0.0
    high_noise_share: float = 0.0
    offset_noise: float = 0.0
    min_snr: float = 5.0
    checkpointing: str | None = None  # which of the UNet's blocks are computed again: "all", "every 2", "1.5 GB"
    checkpointing_offload: str | None = None  # where their inputs wait: "ram", or a folder; None: where they are
    seed: int = 0

    def __post_init__(self) -> None:
        """Raises `InvalidValueError` that names the option and what it may be."""
        for name in ("rank", "text_rank", "conv_rank"):
            self._check(name, 0 <= getattr(self, name) <= MAX_RANK, f"0 to {MAX_RANK}")
        if not (self.rank or self.text_rank or self.conv_rank):
            raise InvalidValueError("All ranks are 0: there is nothing to train. Choose a rank of 1 or more.")
        self._check("alpha", self.alpha is None or self.alpha > 0, "above 0")
        self._check("steps", self.steps >= 1, "1 or more")
        self._check("minutes", self.minutes is None or self.minutes > 0, "above 0")
        self._check("batch", self.batch >= 1, "1 or more")
        self._check("learning_rate", 0 < self.learning_rate <= 1, "above 0, at most 1")
        text_rate = self.text_learning_rate
        self._check("text_learning_rate", text_rate is None or 0 < text_rate <= 1, "above 0, at most 1")
        if self.checkpointing is not None:
            strategy_of(self.checkpointing)
        elif self.checkpointing_offload is not None:
            raise InvalidValueError(
                "--checkpointing-offload says where the inputs of blocks wait that are computed again, and none is. "
                "Give --checkpointing too."
            )
        for name in ("empty_prompts", "high_noise_share", "final_rate"):
            self._check(name, 0 <= getattr(self, name) <= 1, "0 to 1")

    @property
    def text_rate(self) -> float:
        """The text encoder's learning rate."""
        return self.learning_rate / 2 if self.text_learning_rate is None else self.text_learning_rate

    def _check(self, name: str, fits: bool, allowed: str) -> None:
        if not fits:
            raise InvalidValueError(f"{name.replace('_', ' ')} is {getattr(self, name)}; it may be {allowed}.")
