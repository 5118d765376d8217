"""Words of the command line for a second pass and for a second model."""

import argparse
from typing import Any

from modules.processing.request import HiresRequest


def add_pass_words(parser: argparse.ArgumentParser) -> None:
    """`--hires-scale` and what belongs to it; `--refiner`."""
    hires = parser.add_argument_group("hires fix", "a second pass at a larger size; on with --hires-scale")
    hires.add_argument("--hires-scale", type=float, metavar="FACTOR", help="such as 2")
    hires.add_argument("--hires-upscaler", default="Latent", metavar="NAME")
    hires.add_argument("--hires-steps", type=int, default=0, help="default: as many as the first pass")
    hires.add_argument("--denoising-strength", type=float, default=0.7, metavar="SHARE", help="0 to 1, default: 0.7")
    refiner = parser.add_argument_group("refiner", "another checkpoint that takes over on the way")
    refiner.add_argument("--refiner", metavar="CHECKPOINT", help="name, title or hash")
    refiner.add_argument(
        "--refiner-switch-at", type=float, default=0.8, metavar="SHARE", help="default: 0.8 of the way"
    )


def passes_of(arguments: argparse.Namespace) -> dict[str, Any]:
    """The fields of a `GenerationRequest` that say so. Raises `InvalidValueError` for numbers out of range."""
    fields: dict[str, Any] = {
        "refiner_checkpoint": arguments.refiner,
        "refiner_switch_at": arguments.refiner_switch_at,
    }
    if arguments.hires_scale is not None:
        fields["hires"] = HiresRequest(
            scale=arguments.hires_scale,
            upscaler=arguments.hires_upscaler,
            steps=arguments.hires_steps,
            denoising_strength=arguments.denoising_strength,
        )
    return fields
