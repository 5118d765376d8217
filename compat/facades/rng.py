"""`modules.rng`: noise of a seed."""

from __future__ import annotations

from typing import Any

from compat.facades.devices import randn, randn_like, randn_local, randn_without_seed
from compat.facades.refusal import refusing

__all__ = ["ImageRNG", "create_generator", "randn", "randn_like", "randn_local", "randn_without_seed", "slerp"]


def create_generator(seed: int) -> Any:
    """PyTorch's generator of the CPU, seeded."""
    import torch

    return torch.Generator("cpu").manual_seed(int(seed))


def slerp(val: float, low: Any, high: Any) -> Any:
    """Noise between two noises [B,C,h,w], along the sphere; along the line where they are nearly parallel."""
    import torch

    a, b = low / low.norm(dim=1, keepdim=True), high / high.norm(dim=1, keepdim=True)
    dot = (a * b).sum(1)
    if dot.mean() > 0.9995:
        return low * (1 - val) + high * val
    angle = torch.acos(dot)
    sine = torch.sin(angle)
    first, second = torch.sin((1.0 - val) * angle) / sine, torch.sin(val * angle) / sine
    return first.unsqueeze(1) * low + second.unsqueeze(1) * high


class ImageRNG:
    """Noise for a batch of images [C,h,w] of these seeds, one draw after the other."""

    def __init__(
        self, shape: Any, seeds: Any, subseeds: Any = None, subseed_strength: float = 0.0, **unused: Any
    ) -> None:
        self.shape = tuple(map(int, shape))
        self.seeds = list(seeds)
        self.subseeds = list(subseeds or [])
        self.subseed_strength = subseed_strength
        self.generators = [create_generator(seed) for seed in self.seeds]
        self.is_first = True

    def first(self) -> Any:
        """The first draw, with the variation seeds mixed in."""
        import torch

        noise = torch.stack([torch.randn(self.shape, generator=one) for one in self.generators])
        if self.subseeds and self.subseed_strength:
            other = torch.stack([torch.randn(self.shape, generator=create_generator(seed)) for seed in self.subseeds])
            noise = slerp(self.subseed_strength, noise, other)
        return noise

    def next(self) -> Any:
        """The next draw."""
        import torch

        if self.is_first:
            self.is_first = False
            return self.first()
        return torch.stack([torch.randn(self.shape, generator=one) for one in self.generators])


__getattr__ = refusing("rng", {})
