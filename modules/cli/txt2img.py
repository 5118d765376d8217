"""`python launch.py txt2img`: an image without a server, with a progress bar."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from PIL import Image

from modules.assembly import build_services
from modules.cli.parameters import add_parameter_options, request_values
from modules.cli.running import StatusLine, flags_of, run_guarded
from modules.cli.settings_words import add_settings_words, named_checkpoint, settings_of
from modules.errors import InvalidValueError
from modules.flags.flags import DEVICE, MODELS, PATHS, PRECISION, Flags, add_arguments
from modules.images.encode import Quality, encode_image
from modules.images.reading import read_image
from modules.jobs.job import Job
from modules.processing.engine.chosen_checkpoint import stored_checkpoint
from modules.processing.engine.precision import PrecisionOptions
from modules.processing.request.checking import check_names
from modules.processing.request.request import GenerationRequest
from modules.processing.request.result import GeneratedImage, Result
from modules.processing.request.source_images import FromNoise, SourceImage
from modules.scripts.library import filled_args, named_args
from modules.services import ForeignProgram, Services
from modules.system.atomic_files import output_error, write_atomic
from modules.system.bounded import read_json

BAR_WIDTH = 30
REFRESH_S = 0.1
SUFFIXES = (".png", ".jpg", ".jpeg", ".webp", ".avif")
EXAMPLE_ARGS = """'{"X type": "Seed", "X values": "1-4"}'"""


def main(argv: Sequence[str], foreign: ForeignProgram | None = None) -> int:
    """Run the command; returns the exit code (0 done, 1 failed, 2 wrong arguments, 130 interrupted)."""
    parser = _parser()
    arguments = parser.parse_args(argv)
    return run_guarded(lambda: _run(arguments, flags_of(arguments), foreign))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="launch.py txt2img", description="Make images from a prompt.")
    add_parameter_options(parser, required=("prompt",))
    add_job_words(parser)
    return parser


def add_job_words(parser: argparse.ArgumentParser) -> None:
    """Add what every command that makes images understands besides the parameters."""
    parser.add_argument("--output", type=Path, help="file to write; with several images a number is added")
    parser.add_argument(
        "--reference",
        type=Path,
        nargs="+",
        default=[],
        metavar="FILE",
        help="images that models which edit by references are shown besides, for each job all of them",
    )
    parser.add_argument("--checkpoint", default=None, help="name, title or hash (default: the one in the settings)")
    parser.add_argument("--script", help='the title of a script, such as "X/Y/Z plot"')
    parser.add_argument(
        "--script-args",
        metavar="JSON",
        help='its arguments: by their labels {"X type": "Seed", "X values": "1-4"}, or a list in their order',
    )
    add_settings_words(parser)
    add_arguments(parser, (PATHS, PRECISION, DEVICE, MODELS))


def check_output(output: Path | None) -> None:
    """Raise `InvalidValueError` for a name that says no known format."""
    if output is not None and output.suffix.lower() not in SUFFIXES:
        raise InvalidValueError(
            f"--output {output}: the name must end in .png, .jpg, .webp or .avif; that decides the format."
        )


def _run(arguments: argparse.Namespace, flags: Flags, foreign: ForeignProgram | None) -> int:
    check_output(arguments.output)
    services = build_services(flags, foreign=foreign)
    try:
        script = script_of(arguments, services)
        settings = settings_of(arguments, services.settings.current)
        checkpoint = named_checkpoint(arguments)
        wanted = checkpoint or stored_checkpoint(settings, services.catalogue).name
        side = services.engine.model(wanted, PrecisionOptions.of(settings))
        values = {"width": side.default_size_px, "height": side.default_size_px, **request_values(arguments)}
        request = GenerationRequest(
            **values,
            **job_values(arguments, script),
            start=FromNoise(references_of(arguments)),
            checkpoint=checkpoint,
            settings=settings,
        )
        check_names(request, services.catalogue, services.engine.upscalers.catalogue.names)
        services.dispatcher.start()
        return run_job(request, arguments.output, services, flags)
    finally:
        services.dispatcher.close()


def read_source(path: Path) -> SourceImage:
    """An image of a file. Raises `InvalidValueError` for one that holds none."""
    return SourceImage.of(read_image(path, str(path)))


def references_of(arguments: argparse.Namespace) -> tuple[SourceImage, ...]:
    """The images that `--reference` names."""
    return tuple(read_source(path) for path in arguments.reference)


def job_values(arguments: argparse.Namespace, script: dict[str, Any]) -> dict[str, Any]:
    """The fields of a request that say what is saved, and which script makes the images."""
    saves = arguments.output is None
    return {"save_images": saves, "save_grid": bool(script) and saves, **script}


def run_job(request: GenerationRequest, output: Path | None, services: Services, flags: Flags) -> int:
    """Make a request's images, write them, print their names; the exit code."""
    job = services.queue.submit(request)
    _watch(job, quiet=flags.disable_console_progressbars)
    return _deliver(job.result(), output, with_grids=request.script is not None)


def script_of(arguments: argparse.Namespace, services: Services, is_img2img: bool = False) -> dict[str, Any]:
    """The fields of a request that say which script makes the images; none without one."""
    if not arguments.script:
        if arguments.script_args:
            raise InvalidValueError("--script-args says how a script works: name the script with --script.")
        return {}
    script = services.scripts.find(arguments.script, is_img2img)
    try:
        given = read_json(arguments.script_args or "{}")
    except ValueError as error:
        raise InvalidValueError(f"--script-args is no JSON ({error}). Example: {EXAMPLE_ARGS}") from error
    if not isinstance(given, dict | list):
        raise InvalidValueError(f"--script-args must be an object or a list. Example: {EXAMPLE_ARGS}")
    args = named_args(script, given) if isinstance(given, dict) else filled_args(script, given)
    return {"script": script.title(), "script_args": args}


def _watch(job: Job, quiet: bool) -> None:
    """Show a bar until the job ends; Ctrl+C stops it within a step and keeps what is finished."""
    line = StatusLine()
    while True:
        try:
            ended = job.wait(REFRESH_S)
            if not quiet:
                _show(job, line)
            if ended:
                break
        except KeyboardInterrupt:
            job.interrupt()
            print("\nInterrupting ...", file=sys.stderr)
    if not quiet:
        line.end()


def _show(job: Job, line: StatusLine) -> None:
    progress = job.progress()
    full = round(progress.fraction * BAR_WIDTH)
    eta = f", {progress.eta_s:.0f} s left" if progress.eta_s is not None else ""
    steps = f"{progress.step}/{progress.total_steps}" if progress.total_steps else progress.phase
    bar = "█" * full + "░" * (BAR_WIDTH - full)
    line.show(lambda: f"{progress.fraction:4.0%} {steps}{eta}", bar=f"{bar} ")


def _deliver(result: Result, output: Path | None, with_grids: bool = False) -> int:
    for notice in result.notices:
        print(notice, file=sys.stderr)
    samples = [item for item in (result.images if with_grids else result.samples) if item.is_finished]
    for number, image in enumerate(samples):
        path = image.path
        if output is not None:
            path = output if len(samples) == 1 else output.with_name(f"{output.stem}-{number}{output.suffix}")
            if with_grids and number == 0:
                path = output
            _write(image.image, image, path)
        if path is not None:
            print(path)
    if result.interrupted:
        count = "1 image was" if len(samples) == 1 else f"{len(samples)} images were"
        print(f"Interrupted; {count} finished.", file=sys.stderr)
        return 130
    return 0


def _write(image: Image.Image, generated: GeneratedImage, path: Path) -> None:
    extension = path.suffix.lower().removeprefix(".")
    data = encode_image(image, "jpg" if extension == "jpeg" else extension, generated.infotext, Quality())
    try:
        write_atomic(path, data)
    except OSError as error:
        raise output_error("The image", path.parent, error) from error
