"""`python launch.py precision-compare`: images and numbers of several storage formats, as an HTML page and JSON."""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from lib_workbench.precision_work import COMPARED, COMPARED_BY_DEFAULT, described
from modules.assembly import build_services
from modules.cli.running import flags_of, run_guarded
from modules.cli.settings_words import add_settings_words, named_checkpoint, settings_of
from modules.errors import InvalidValueError
from modules.flags.flags import DEVICE, MODELS, PATHS, PRECISION, Flags, add_arguments
from modules.jobs.line import fix_seeds
from modules.processing.engine.chosen_checkpoint import stored_checkpoint
from modules.processing.engine.precision import PrecisionOptions
from modules.processing.record.output import Output
from modules.processing.request.checking import check_names
from modules.processing.request.events import Silent
from modules.processing.request.request import GenerationRequest
from modules.services import ForeignProgram
from modules.system.atomic_files import output_error, write_atomic


def main(argv: Sequence[str], foreign: ForeignProgram | None = None) -> int:
    """Run the command; exit code 0, or 1 for errors."""
    parser = argparse.ArgumentParser(
        prog="launch.py precision-compare", description="Make the same images in several precisions and compare them."
    )
    parser.add_argument("--prompt", action="append", required=True, help="repeatable")
    parser.add_argument(
        "--format", action="append", help=f"repeatable; the first is the measure: {', '.join(COMPARED)}"
    )
    parser.add_argument("--output", type=Path, required=True, help="the .html file; numbers go into .json next to it")
    parser.add_argument("--checkpoint", default=None)
    parser.add_argument("--negative-prompt", default="")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--cfg-scale", type=float, default=7.0)
    parser.add_argument("--sampler", default="DPM++ 2M")
    parser.add_argument("--width", type=int)
    parser.add_argument("--height", type=int)
    add_settings_words(parser, fp8=False)
    add_arguments(parser, (PATHS, PRECISION, DEVICE, MODELS))
    arguments = parser.parse_args(argv)
    return run_guarded(lambda: _run(arguments, flags_of(arguments), foreign))


def _run(arguments: argparse.Namespace, flags: Flags, foreign: ForeignProgram | None) -> int:
    if arguments.output.suffix != ".html":
        raise InvalidValueError(f"--output {arguments.output}: the name must end in .html.")
    services = build_services(flags, foreign=foreign)
    try:
        settings = settings_of(arguments, services.settings.current)
        checkpoint = named_checkpoint(arguments)
        stored = stored_checkpoint(settings, services.catalogue)
        wanted = checkpoint or stored.name
        if stored.notice and not checkpoint:
            print(stored.notice, file=sys.stderr)
        side = services.engine.model(wanted, PrecisionOptions.of(settings)).default_size_px
        request = GenerationRequest(
            negative_prompt=arguments.negative_prompt,
            width=arguments.width or side,
            height=arguments.height or side,
            steps=arguments.steps,
            cfg_scale=arguments.cfg_scale,
            sampler=arguments.sampler,
            seed=arguments.seed,
            checkpoint=checkpoint,
            settings=settings,
        )
        check_names(request, services.catalogue)
        from lib_workbench.comparison.compare import as_json, compare
        from lib_workbench.comparison.report_page import as_html
        from lib_workbench.comparison.verdict import verdict

        formats = arguments.format or COMPARED_BY_DEFAULT
        output = Output(arguments.output.parent)
        request = fix_seeds(request)
        rows = compare(request, arguments.prompt, formats, services.engine, output, Silent())
        title = services.catalogue.default(wanted).title
        page = as_html(rows, arguments.prompt, title, described(request))
        numbers = as_json(rows, arguments.prompt, title)
        try:
            write_atomic(arguments.output, page.encode("utf-8"))
            write_atomic(arguments.output.with_suffix(".json"), json.dumps(numbers, indent=1).encode("utf-8"))
        except OSError as error:
            raise output_error("The comparison", arguments.output.parent, error) from error
        for row in rows:
            closeness = ", ".join("identical" if v == float("inf") else f"{v:.1f} dB" for v in row.psnr_db)
            facts = f"{row.weight_bytes / 1e6:>9.1f} MB {row.seconds_per_step * 1e3:>8.0f} ms/step"
            peak = f" peak {row.peak_memory_bytes / 1e6:>8.0f} MB" if row.peak_memory_bytes else ""
            print(f"{row.storage:<16}{facts}{peak}  {closeness}")
        print(verdict(rows))
        print(arguments.output)
        return 0
    finally:
        services.dispatcher.close()
