"""Facts that the name of a saved image can be made of."""

from dataclasses import dataclass, field
from datetime import datetime


@dataclass(frozen=True, kw_only=True)
class NameContext:
    """The facts about one image that file name patterns may show; None and "" leave a pattern empty."""

    prompt: str = ""
    negative_prompt: str = ""
    prompt_no_styles: str | None = None  # None: as `prompt`
    seed: int = 0
    seeds: tuple[int, ...] = ()  # of the whole job, for [seed_first] and [seed_last]
    steps: int = 0
    cfg_scale: float = 0.0
    width: int = 0  # pixels
    height: int = 0
    styles: tuple[str, ...] = ()
    sampler: str = ""
    scheduler: str = ""
    model_hash: str = ""
    model_name: str = ""
    vae_filename: str = ""
    clip_skip: int = 1
    denoising_strength: float | None = None
    user: str = ""
    batch_index: int = 0  # position inside its batch, from 0
    batch_size: int = 1
    iteration: int = 0  # which batch, from 0
    n_iter: int = 1
    now: datetime = field(default_factory=lambda: datetime.now().astimezone())
    job_timestamp: datetime | None = None  # when the job began; None: `now`
