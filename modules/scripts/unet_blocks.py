"""A UNet of diffusers as its authors number it: input blocks, whose outputs are skips, and output blocks, which take
them.

Input block 0 is the first convolution; then come, level by level, the residual blocks with their attention and the
downsampler. Output block k takes the skip of input block `len - 1 - k`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from modules.memory.hook_chain import HookOrder

if TYPE_CHECKING:
    from torch import Tensor, nn

    from modules.processing.request.model_use import ModelUse

Change = Callable[["Tensor"], "Tensor"]
Size = tuple[int, int]
"""Height and width."""


@dataclass(frozen=True)
class Block:
    """`first` gets the features [N,C,h,w], `last` gives them; they are one module where there is no attention."""

    first: nn.Module
    last: nn.Module


@dataclass
class UnetBlocks:
    """The blocks, and during a call the sizes (height, width) and channels of the skips so far."""

    inputs: list[Block]
    outputs: list[Block]
    skips: list[tuple[int, int, int]] = field(default_factory=list)  # channels, height, width
    sample_size: tuple[int, int] = (0, 0)  # height, width

    @classmethod
    def of(cls, unet: Any, use: ModelUse | None = None) -> UnetBlocks | None:
        """None for a denoiser that is no such UNet. With `use` the skips are noted during the pass."""
        if not all(hasattr(unet, name) for name in ("conv_in", "down_blocks", "up_blocks")):
            return None
        inputs = [Block(unet.conv_in, unet.conv_in)]
        for level in unet.down_blocks:
            inputs += _pairs(level)
            inputs += [Block(each, each) for each in level.downsamplers or ()]
        blocks = cls(inputs, [block for level in unet.up_blocks for block in _pairs(level)])
        if use is not None:
            for block in inputs:
                use.hook(block.last, blocks._note, HookOrder.OBSERVE)
            use.hook(unet.conv_in, blocks._begin, HookOrder.OBSERVE)
        return blocks

    def fit_upsamplers(self, unet: Any, use: ModelUse) -> None:
        """Have every upsampler give the size of the skip that comes next, however small the features have become."""
        output = 0
        for level in unet.up_blocks:
            output += len(level.resnets)
            for upsampler in (level.upsamplers or ()) if output < len(self.outputs) else ():
                use.hook(upsampler, self._fitting(output), HookOrder.ADAPTER)

    def match_skips(self, unet: Any, use: ModelUse) -> None:
        """Have what every output block gives repeat or leave out cells until it has the size of the skip that comes
        next, as the reference UI does."""
        ends = [block.last for block in self.outputs]
        output = 0
        for level in unet.up_blocks:
            output += len(level.resnets)
            for upsampler in level.upsamplers or ():
                ends[output - 1] = upsampler
                use.hook(upsampler, _doubling, HookOrder.OBSERVE)
        for number, end in enumerate(ends):
            use.hook(end, after(partial(self._matched, number + 1)))

    def _matched(self, output: int, x: Tensor) -> Tensor:
        return matched(x, self.skip_of(output)[1:] if output < len(self.outputs) else self.sample_size)

    def fit_residuals(self, unet: Any, use: ModelUse, changed: Callable[[int, Size], Size]) -> None:
        """Have what control networks add be of the size of the features, which `changed` gives for those in front of an
        input block."""
        levels = [len(level.resnets) for level in unet.down_blocks]
        ends = [sum(levels[: place + 1]) + place for place in range(len(levels))]  # behind each level's last block
        halving = [each for level in unet.down_blocks for each in level.downsamplers or ()]

        def fit(module: nn.Module, inner: Callable[..., Any], /, sample: Tensor, *args: Any, **rest: Any) -> Any:
            height, width = sample.shape[-2:]
            sizes: list[Size] = []
            for place, block in enumerate(self.inputs):
                height, width = changed(place, (height, width))
                if block.first in halving:
                    height, width = (height + 1) // 2, (width + 1) // 2
                sizes.append((height, width))
            for name, wanted in (
                ("down_block_additional_residuals", sizes),
                ("down_intrablock_additional_residuals", [*(sizes[end] for end in ends), sizes[-1]]),
            ):
                if rest.get(name) is not None:
                    rest[name] = [_fitted(x, size) for x, size in zip(rest[name], wanted, strict=False)]
            middle = rest.get("mid_block_additional_residual")
            if middle is not None:
                rest["mid_block_additional_residual"] = _fitted(middle, sizes[-1])
            return inner(sample, *args, **rest)

        use.hook(unet, fit, HookOrder.ADAPTER)

    def _fitting(self, output: int) -> Callable[..., Any]:
        def fit(module: nn.Module, inner: Callable[..., Any], /, x: Tensor, *args: Any, **kwargs: Any) -> Any:
            size = self.skip_of(output)[1:]
            if size == (x.shape[-2] * 2, x.shape[-1] * 2):
                return inner(x, *args, **kwargs)
            return inner(x, size)

        return fit

    def _begin(self, module: nn.Module, inner: Callable[..., Any], /, sample: Tensor, **kwargs: Any) -> Any:
        self.skips.clear()
        height, width = sample.shape[-2:]
        self.sample_size = (height, width)
        return inner(sample, **kwargs)

    def _note(self, module: nn.Module, inner: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        output = inner(*args, **kwargs)
        channels, height, width = _features(output).shape[1:]
        self.skips.append((channels, height, width))
        return output

    def skip_of(self, output: int) -> tuple[int, int, int]:
        """Channels, height and width of the skip that an output block takes."""
        return self.skips[len(self.inputs) - 1 - output]


def matched(x: Tensor, size: Size) -> Tensor:
    """Repeat or leave out cells of features until they have this size."""
    from torch.nn.functional import interpolate

    return x if tuple(x.shape[-2:]) == size else interpolate(x, size=size, mode="nearest")


def _fitted(residual: Tensor, size: Size) -> Tensor:
    """Bring what is added to features to their size; a single cell counts everywhere as it is."""
    return residual if tuple(residual.shape[-2:]) == (1, 1) else matched(residual, size)


def _pairs(level: Any) -> list[Block]:
    attentions = getattr(level, "attentions", None) or [None] * len(level.resnets)
    return [Block(resnet, attention or resnet) for resnet, attention in zip(level.resnets, attentions, strict=True)]


def _features(output: Any) -> Tensor:
    features: Tensor = output[0] if isinstance(output, tuple) else output
    return features


def _doubling(module: nn.Module, inner: Callable[..., Any], /, x: Tensor, *args: Any, **kwargs: Any) -> Any:
    """Have an upsampler double, whatever size it is asked for."""
    return inner(x)


def before(change: Change) -> Callable[..., Any]:
    """A hook that changes the features which a module gets."""

    def hook(module: nn.Module, inner: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        if args:
            return inner(change(args[0]), *args[1:], **kwargs)
        return inner(**{**kwargs, "hidden_states": change(kwargs["hidden_states"])})

    return hook


def after(change: Change) -> Callable[..., Any]:
    """A hook that changes the features which a module gives."""

    def hook(module: nn.Module, inner: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        output = inner(*args, **kwargs)
        if isinstance(output, tuple):
            return (change(output[0]), *output[1:])
        return change(output)

    return hook
