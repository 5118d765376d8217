"""`python launch.py plan --width 1024 ...`: what an image will need in memory and time, without making it."""

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from modules.assembly import build_services
from modules.cli.parameters import add_parameter_options, request_values
from modules.cli.running import flags_of, run_guarded
from modules.cli.settings_words import add_settings_words, named_checkpoint, settings_of
from modules.errors import InvalidValueError
from modules.flags.flags import DEVICE, MODELS, PATHS, PRECISION, Flags, add_arguments
from modules.processing.engine.chosen_checkpoint import stored_checkpoint
from modules.processing.memory_estimate.estimate import MemoryEstimate, MemoryEstimator
from modules.processing.memory_estimate.planner import LocalPlanner
from modules.processing.memory_estimate.proposals import Proposal
from modules.processing.memory_estimate.step_time import StepTime
from modules.processing.memory_estimate.words import GB, plan_line, plan_reply, why_nothing_fits
from modules.processing.request.request import GenerationRequest
from modules.scripts.library import read_args
from modules.services import ForeignProgram, Services
from modules.system.bounded import read_json

MAX_GB = 1_000_000
GIB = 1 << 30
EXAMPLE_SCRIPT = """'ControlNet=[{"model": "canny"}]'"""


def main(argv: Sequence[str], foreign: ForeignProgram | None = None) -> int:
    """Print the plan. Exit code 0 where it fits, 2 where it does not, 1 for errors."""
    arguments = _parser().parse_args(argv)
    return run_guarded(lambda: _run(arguments, flags_of(arguments), foreign))


def report(plan: MemoryEstimate, proposals: Sequence[Proposal], time: StepTime | None = None) -> str:
    """The plan as text; `time` with the first of the proposals where it does not fit as it is."""
    lines = [f"{plan.device}: {plan_line(plan)}, weights {plan.weights_bytes / GB:.2f} GB"]
    lines += [f"  {stage.stage:<16}{stage.needs_bytes / GB:>8.2f} GB" for stage in plan.stages]
    if plan.learnt_from == 0:
        lines.append("An estimate: no image of this kind has been made here yet, from which it could be learnt.")
    if not plan.fits:
        lines.append("It does not fit. What would help:" if proposals else why_nothing_fits(plan))
        lines += [f"  {item.change.title}: {plan_line(item.plan)}" for item in proposals]
    if time is not None:
        with_it = "" if plan.fits else f"With {proposals[0].change.title}: "
        lines.append(f"{with_it}{time.line}, where nothing else runs here.")
    return "\n".join(lines)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="launch.py plan", description="Predict the memory and the time that an image needs."
    )
    add_parameter_options(parser)
    parser.add_argument("--checkpoint", default=None, help="name, title or hash (default: the one in the settings)")
    add_settings_words(parser)
    amount = parser.add_mutually_exclusive_group()
    amount.add_argument("--available-gb", type=float, default=None, help="what if the device had so much free")
    amount.add_argument("--vram", type=float, default=None, metavar="GB", help="what if there were a GPU with so much")
    parser.add_argument(
        "--always",
        action="append",
        default=[],
        metavar="TITLE=JSON",
        help=f"an always-on script and its arguments, such as {EXAMPLE_SCRIPT}; repeatable",
    )
    parser.add_argument("--json", action="store_true", help="print everything as JSON")
    add_arguments(parser, (PATHS, PRECISION, DEVICE, MODELS))
    return parser


def _run(arguments: argparse.Namespace, flags: Flags, foreign: ForeignProgram | None) -> int:
    services = build_services(flags, foreign=foreign)
    try:
        settings = settings_of(arguments, services.settings.current)
        checkpoint, stored = named_checkpoint(arguments), stored_checkpoint(settings, services.catalogue)
        if stored.notice and not checkpoint:
            print(stored.notice, file=sys.stderr)
        request = GenerationRequest(
            **request_values(arguments),
            checkpoint=checkpoint or stored.name,
            settings=settings,
            alwayson_args=_always(arguments.always, services),
        )
        plan, proposals, time = _planned(arguments, request, services)
        if arguments.json:
            print(json.dumps({**plan_reply(plan, proposals), "time": time.reply if time else None}, indent=1))
        else:
            print(report(plan, proposals, time))
        return 0 if plan.fits else 2
    finally:
        services.dispatcher.close()


def _planned(
    arguments: argparse.Namespace, request: GenerationRequest, services: Services
) -> tuple[MemoryEstimate, tuple[Proposal, ...], StepTime | None]:
    """Plan for this machine, with a step's time, or for a GPU with so much memory, of which no time is known."""
    if arguments.vram is None:
        free = None if arguments.available_gb is None else _bytes("--available-gb", arguments.available_gb)
        plan, proposals = services.planner.planned(request, free)
        return plan, proposals, _step_time(services.estimator, request, plan, proposals)
    estimator = services.estimator.with_gpu()
    free = estimator.bytes_of_gpu(_bytes("--vram", arguments.vram * GIB / GB), request.settings)
    plan, proposals = LocalPlanner(estimator).planned(request, free)
    return replace(plan, device=f"a GPU with {arguments.vram:g} GB"), proposals, None


def _always(words: Sequence[str], services: Services) -> dict[str, tuple[Any, ...]]:
    """Read the arguments of always-on scripts. Raises `InvalidValueError` for what is no JSON list."""
    found = {}
    for word in words:
        title, _, text = word.partition("=")
        try:
            args = read_json(text)
        except ValueError:
            args = None
        if not isinstance(args, list):
            raise InvalidValueError(f"--always {word}: write TITLE=JSON with a list, for example {EXAMPLE_SCRIPT}.")
        script = services.scripts.find_alwayson(title.strip())
        found[script.title()] = read_args(script, args, title)
    return found


def _step_time(
    estimator: MemoryEstimator, request: GenerationRequest, plan: MemoryEstimate, proposals: Sequence[Proposal]
) -> StepTime | None:
    """Measure a step of the job as it is, or with the first proposal; None where it cannot be done, or a step cannot be
    measured."""
    if plan.fits:
        return estimator.step_work(request).timed()
    return estimator.step_work(proposals[0].change.applied_to(request)).timed() if proposals else None


def _bytes(option: str, gigabytes: float) -> int:
    if not 0 < gigabytes <= MAX_GB:
        raise InvalidValueError(f"{option} is {gigabytes:g}; allowed is more than 0, up to {MAX_GB}.")
    return round(gigabytes * GB)
