"""`python launch.py plan --width 1024 ...`: what an image will need in memory and time, without making it."""

import argparse
import json
import sys
from collections.abc import Sequence

from modules.assembly import build_services
from modules.cli.parameters import add_parameter_options, request_values
from modules.cli.running import flags_of, run_guarded
from modules.cli.settings_words import add_settings_words, named_checkpoint, settings_of
from modules.errors import InvalidValueError
from modules.flags.flags import DEVICE, MODELS, PATHS, PRECISION, Flags, add_arguments
from modules.processing.engine.chosen_checkpoint import stored_checkpoint
from modules.processing.memory_estimate.estimate import MemoryEstimate, MemoryEstimator
from modules.processing.memory_estimate.proposals import Proposal
from modules.processing.memory_estimate.step_time import StepTime
from modules.processing.memory_estimate.words import GB, plan_line, plan_reply
from modules.processing.request.request import GenerationRequest
from modules.services import ForeignProgram

MAX_GB = 1_000_000


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
        lines.append("It does not fit. What would help:" if proposals else "It does not fit, and no change would help.")
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
    parser.add_argument("--available-gb", type=float, default=None, help="what if the device had so much")
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
        )
        free = None if arguments.available_gb is None else _bytes(arguments.available_gb)
        plan, proposals = services.planner.planned(request, free)
        time = _step_time(services.estimator, request, plan, proposals)
        if arguments.json:
            print(json.dumps({**plan_reply(plan, proposals), "time": time.reply if time else None}, indent=1))
        else:
            print(report(plan, proposals, time))
        return 0 if plan.fits else 2
    finally:
        services.dispatcher.close()


def _step_time(
    estimator: MemoryEstimator, request: GenerationRequest, plan: MemoryEstimate, proposals: Sequence[Proposal]
) -> StepTime | None:
    """Measure a step of the job as it is, or with the first proposal; None where it cannot be done, or a step cannot be
    measured."""
    if plan.fits:
        return estimator.step_work(request).timed()
    return estimator.step_work(proposals[0].change.applied_to(request)).timed() if proposals else None


def _bytes(gigabytes: float) -> int:
    if not 0 < gigabytes <= MAX_GB:
        raise InvalidValueError(f"--available-gb is {gigabytes}; allowed is more than 0, up to {MAX_GB}.")
    return round(gigabytes * GB)
