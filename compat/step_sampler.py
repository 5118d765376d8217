"""The sampler's object that extensions of the reference UI put a function of their own at, to see each step."""

from __future__ import annotations

import logging
from typing import Any

from compat.host import PROCESS

log = logging.getLogger(__name__)


class KDiffusionSampler:
    """Made for each pass while an extension has replaced `callback_state`. It samples nothing itself."""

    def __init__(self, p: Any = None) -> None:
        self.p = p
        self.model_wrap_cfg: Any = self  # here `step` and `total_steps` are asked for
        self.step = self.total_steps = self.steps = 0
        self.last_latent: Any = None
        self.sampler_noises = None
        self.stop_at = None
        self.eta = None

    def callback_state(self, d: dict[str, Any]) -> None:
        """A step was predicted: `x` and `denoised` [B,C,h,w] may be changed in place, `sigma`, `sigma_hat` and `i` say
        where the pass is. Does nothing until an extension replaces it."""

    def tell(self, index: int, total: int, x: Any, denoised: Any, sigma: Any) -> None:
        """Call what was put at `callback_state`; a fault of it is logged once and costs nothing."""
        self.step, self.total_steps, self.steps, self.last_latent = index, total, total, denoised
        try:
            self.callback_state({"i": index, "x": x, "denoised": denoised, "sigma": sigma, "sigma_hat": sigma})
        except Exception as error:  # somebody else's code must not cost the image
            sentence = f"KDiffusionSampler.callback_state of an extension failed: {error}"
            if sentence not in PROCESS.reported:  # it would fail again at each step
                PROCESS.reported.add(sentence)
                log.error(sentence, exc_info=error)


ORIGINAL = KDiffusionSampler.callback_state


def is_watched() -> bool:
    """Whether an extension has put a function of its own at `callback_state`."""
    return KDiffusionSampler.callback_state is not ORIGINAL
