"""`python launch.py precision-report CHECKPOINT` and `convert CHECKPOINT --output FILE`: what a storage format makes of
a checkpoint, before and after one decides for it."""

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from lib_workbench.merging.conversion import PrecisionReport, report_precision, save_as
from modules.assembly import build_services
from modules.cli.running import flags_of, run_guarded
from modules.flags.flags import MODELS, PATHS, add_arguments
from modules.memory.storage import StorageRules
from modules.models.files.catalogue import CheckpointInfo
from modules.processing.engine.precision import BUDGET_FORMAT, storage_rules
from modules.services import ForeignProgram, Services

DEFAULT_FORMAT = "fp8_e4m3fn_row"
WORST_SHOWN = 10
MB = 1e6


def report(argv: Sequence[str], foreign: ForeignProgram | None = None) -> int:
    """The dry run: what is cast, what stays, bytes before and after, errors by tensor. Exit code 0, or 1 for errors."""
    parser = _parser("precision-report", "Say what a storage format would make of a checkpoint; changes nothing.")
    parser.add_argument("--json", action="store_true", help="print everything as JSON")
    arguments = parser.parse_args(argv)

    def run(services: Services, info: CheckpointInfo) -> int:
        found = report_precision(
            info,
            services.paths.root / "configs",
            _rules(arguments),
            not arguments.keep_text_encoder,
            _progress(arguments.json),
            _budget_bytes(arguments),
        )
        print(json.dumps(found.as_dict(), indent=1) if arguments.json else summary(found))
        return 0

    return _guarded(arguments, run, foreign)


def convert(argv: Sequence[str], foreign: ForeignProgram | None = None) -> int:
    """Save a checkpoint in another format. Exit code 0, or 1 for errors."""
    parser = _parser("convert", "Save a checkpoint in another precision, in the same layout.")
    parser.add_argument("--output", type=Path, required=True, help="the .safetensors or .gguf file to write")
    parser.add_argument(
        "--layout", default="", metavar="NAME", help="own, comfyui or gguf (default: own, or as the file's name says)"
    )
    parser.add_argument(
        "--alone", action="store_true", help="a denoiser stays alone, whatever text encoders and VAE are near it"
    )
    arguments = parser.parse_args(argv)

    def run(services: Services, info: CheckpointInfo) -> int:
        found = save_as(
            info,
            services.paths.root / "configs",
            _rules(arguments),
            arguments.output,
            not arguments.keep_text_encoder,
            _progress(False),
            _budget_bytes(arguments),
            arguments.layout,
            arguments.alone,
        )
        print(summary(found))
        print(arguments.output)
        return 0

    return _guarded(arguments, run, foreign)


def summary(found: PrecisionReport) -> str:
    """The report as a page of text."""
    lines = [f"{found.checkpoint} ({found.family}) as {found.storage}", ""]
    lines.append(f"{'part':<18}{'stored':>8}{'stays':>8}{'16 bit':>12}{'as stored':>12}{'ratio':>8}")
    for component in (*found.components(), None):
        before, after = found.bytes_of(component)
        chosen = [tensor for tensor in found.tensors if component in (None, tensor.component)]
        stored = sum(tensor.storage is not None for tensor in chosen)
        lines.append(
            f"{component or 'all':<18}{stored:>8}{len(chosen) - stored:>8}{before / MB:>9.1f} MB{after / MB:>9.1f} MB"
            f"{after / max(before, 1):>8.3f}"
        )
    saturated = sum(tensor.saturated for tensor in found.tensors)
    lines += ["", f"mean relative error of the stored weights: {found.mean_error:.3%}"]
    if saturated:
        lines.append(f"weights beyond the format's range, set to its largest number: {saturated}")
    lines += found.notices
    worst = found.worst(WORST_SHOWN)
    if worst:
        lines += ["largest errors:"]
        lines += [f"  {tensor.error:8.3%}  {tensor.name} {list(tensor.shape)}" for tensor in worst]
    return "\n".join(lines)


def _parser(command: str, description: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=f"launch.py {command}", description=description)
    parser.add_argument("checkpoint", help="a file, or a name, title or hash of a model that is installed")
    parser.add_argument("--format", default=DEFAULT_FORMAT, help=f"storage format (default {DEFAULT_FORMAT})")
    parser.add_argument(
        "--skip", action="append", default=[], metavar="REGEX", help="layers to leave alone; repeatable"
    )
    parser.add_argument("--keep-text-encoder", action="store_true", help="leave text encoders in 16 bit")
    parser.add_argument(
        "--budget-gb",
        type=float,
        default=0.0,
        metavar="GB",
        help="in place of --format: a format for each layer, so that all weights fit with the least total error",
    )
    add_arguments(parser, (PATHS, MODELS))
    return parser


def _rules(arguments: argparse.Namespace) -> StorageRules:
    storage = BUDGET_FORMAT if _budget_bytes(arguments) else arguments.format
    return storage_rules(storage, tuple(arguments.skip))


def _budget_bytes(arguments: argparse.Namespace) -> int | None:
    return round(arguments.budget_gb * 1e9) or None


def _guarded(
    arguments: argparse.Namespace, run: Callable[[Services, CheckpointInfo], int], foreign: ForeignProgram | None
) -> int:
    file = Path(arguments.checkpoint)
    flags = flags_of(arguments, **({"ckpt": str(file)} if file.is_file() else {}))

    def work() -> int:
        services = build_services(flags, foreign=foreign)
        try:
            return run(services, services.catalogue.get(str(file) if file.is_file() else arguments.checkpoint))
        finally:
            services.dispatcher.close()

    return run_guarded(work)


def _progress(quiet: bool) -> Callable[[int, int], None]:
    def show(done: int, total: int) -> None:
        if not quiet and sys.stderr.isatty():
            print(f"\r{done}/{total} tensors ", end="\n" if done == total else "", file=sys.stderr, flush=True)

    return show
