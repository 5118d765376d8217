"""`python launch.py img2img --init FILE ...`: images from images without a server, one job for each file."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from modules.assembly import build_services
from modules.cli.parameters import add_parameter_options, mask_values, request_values, start_values
from modules.cli.running import flags_of, run_guarded
from modules.cli.settings_words import named_checkpoint, settings_of
from modules.cli.txt2img import (
    add_job_words,
    check_output,
    job_values,
    read_source,
    references_of,
    run_job,
    script_of,
)
from modules.errors import InvalidValueError
from modules.flags.flags import Flags
from modules.processing.request.checking import check_names
from modules.processing.request.request import IMG2IMG_PARAMETERS, MIN_SIDE_PX, GenerationRequest
from modules.processing.request.source_images import MASK_PREFIX, FromImage, Mask, SourceImage, check_start
from modules.services import ForeignProgram

SIDE_STEP_PX = 8


def main(argv: Sequence[str], foreign: ForeignProgram | None = None) -> int:
    """Run the command; returns the exit code (0 done, 1 failed, 2 wrong arguments, 130 interrupted)."""
    arguments = _parser().parse_args(argv)
    return run_guarded(lambda: _run(arguments, flags_of(arguments), foreign))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="launch.py img2img", description="Make images from images and a prompt.")
    parser.add_argument(
        "--init", type=Path, nargs="+", required=True, metavar="FILE", help="images to start from, one job for each"
    )
    add_parameter_options(parser, IMG2IMG_PARAMETERS)
    parser.set_defaults(width=None, height=None)  # those of the image
    parser.add_argument(
        "--mask",
        type=Path,
        nargs="+",
        default=[],
        metavar="FILE",
        help="white is painted: one for all, or one for each",
    )
    parser.add_argument("--mask-blur", type=int, metavar="PIXELS", help="default: 4")
    add_job_words(parser)
    return parser


def _run(arguments: argparse.Namespace, flags: Flags, foreign: ForeignProgram | None) -> int:
    check_output(arguments.output)
    _check_masks(arguments)
    services = build_services(flags, foreign=foreign)
    try:
        script = script_of(arguments, services, is_img2img=True)
        settings = settings_of(arguments, services.settings.current)
        checkpoint = named_checkpoint(arguments)
        requests = []
        references = references_of(arguments)
        for number, path in enumerate(arguments.init):  # everything wrong is said before the first image
            start = _start(arguments, number, references)
            size = _size_of(start.images[0])
            request = GenerationRequest(
                **{**size, **request_values(arguments)},
                **job_values(arguments, script),
                start=start,
                checkpoint=checkpoint,
                settings=settings,
            )
            check_start(start, request.batch_size)
            check_names(request, services.catalogue, services.engine.upscalers.catalogue.names)
            requests.append((request, _output(arguments, path)))
        services.dispatcher.start()
        codes = []
        for request, output in requests:
            codes.append(run_job(request, output, services, flags))
            if codes[-1] == 130:  # Ctrl+C
                break
        return max(codes)
    finally:
        services.dispatcher.close()


def _check_masks(arguments: argparse.Namespace) -> None:
    masks, images = len(arguments.mask), len(arguments.init)
    if masks not in (0, 1, images):
        raise InvalidValueError(f"--mask names {masks} files and --init {images}; give one mask, or one for each.")
    of_masks = ("invert", "full_resolution", "blur")
    given = [name for name in of_masks if getattr(arguments, MASK_PREFIX + name)]
    if given and not masks:
        raise InvalidValueError(f"--mask-{given[0]} and the like are about a mask: give one with --mask.")


def _start(arguments: argparse.Namespace, number: int, references: tuple[SourceImage, ...]) -> FromImage:
    """Return what the job of file `number` begins with. Raises `InvalidValueError` for a file that is no image."""
    mask = None
    if arguments.mask:
        values = mask_values(arguments)
        if arguments.mask_blur is not None:
            values |= {"blur_x": arguments.mask_blur, "blur_y": arguments.mask_blur}
        mask = Mask(image=read_source(arguments.mask[number % len(arguments.mask)]), **values)
    image = read_source(arguments.init[number])
    return FromImage(images=(image,), mask=mask, references=references, **start_values(arguments))


def _size_of(source: SourceImage) -> dict[str, int]:
    """The size of an image, cut down to what a latent can have."""
    width, height = (max(side // SIDE_STEP_PX * SIDE_STEP_PX, MIN_SIDE_PX) for side in source.image.size)
    return {"width": width, "height": height}


def _output(arguments: argparse.Namespace, path: Path) -> Path | None:
    """Where the images of one file go: with several files its name is added."""
    output: Path | None = arguments.output
    if output is None or len(arguments.init) == 1:
        return output
    return output.with_name(f"{output.stem}-{path.stem}{output.suffix}")
