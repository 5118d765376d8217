"""Upsampling in the UNet as the original code does it where sizes are odd.

A 12x12 latent becomes 6, 3, 2 on the way down; on the way up 2 becomes 4, which does not fit beside the 3 of the skip
connection. diffusers resizes straight to 3 and convolves there; the original doubles, convolves, and then resizes to
the skip's size. For even sizes both are the same. Images of hires fix depend on it.
"""

from diffusers import UNet2DConditionModel
from torch import Tensor, nn
from torch.nn import functional as F


class LdmUpsample(nn.Module):
    """Double with nearest neighbours, convolve, then fit to `output_size`; takes over the convolution it replaces."""

    def __init__(self, conv: nn.Module) -> None:
        super().__init__()
        self.conv = conv

    def forward(self, hidden_states: Tensor, output_size: tuple[int, int] | None = None) -> Tensor:
        """[B,C,h,w] to [B,C,2h,2w], or to `output_size` (height, width)."""
        result: Tensor = self.conv(F.interpolate(hidden_states, scale_factor=2.0, mode="nearest"))
        if output_size is not None and tuple(result.shape[2:]) != tuple(output_size):
            result = F.interpolate(result, size=tuple(output_size), mode="nearest")
        return result


def use_ldm_upsampling(unet: UNet2DConditionModel) -> UNet2DConditionModel:
    """Put `LdmUpsample` in place of the UNet's own upsamplers; names of parameters stay."""
    for block in unet.up_blocks:
        if block.upsamplers is not None:
            block.upsamplers = nn.ModuleList(LdmUpsample(upsampler.conv) for upsampler in block.upsamplers)
    return unet
