"""`python launch.py train CONFIG.yaml`: trains an adapter or an embedding as the file says; `--describe` prints a file
with every key."""

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from modules.assembly import build_services, training_of
from modules.cli.running import flags_of, run_guarded
from modules.flags.flags import MODELS, PATHS, Flags, add_arguments
from modules.training.config import describe, read_config


def main(argv: Sequence[str]) -> int:
    """Run the command; returns the exit code (0 done, 1 failed, 2 wrong arguments, 130 interrupted)."""
    if "--describe" in argv:
        print(describe(), end="")
        return 0
    arguments = _parser().parse_args(argv)
    try:
        return run_guarded(lambda: _run(arguments, flags_of(arguments)))
    except KeyboardInterrupt:
        print("\nStopped; the same command goes on from the last step.", file=sys.stderr)
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="launch.py train", description="Train an adapter as a file says.")
    parser.add_argument("config", type=Path, help="a YAML file, see --describe and docs/training.md")
    parser.add_argument("--describe", action="store_true", help="print a configuration with every key, and stop")
    parser.add_argument("--check", action="store_true", help="look at the images and estimate memory, and stop")
    parser.add_argument("--find-rate", action="store_true", help="twenty steps that say which learning rate fits")
    parser.add_argument("--restart", action="store_true", help="begin anew, not from the state of a training cut off")
    add_arguments(parser, (PATHS, MODELS))
    return parser


def _run(arguments: argparse.Namespace, flags: Flags) -> int:
    config = read_config(arguments.config)
    if arguments.restart:
        config = replace(config, output=replace(config.output, resume=False))
    services = build_services(flags)
    try:
        work = training_of(services)
        work.check(config)
        from modules.training.finder import find_rate
        from modules.training.folders import read_folders
        from modules.training.run import Progress, TrainingRun, run_training

        config, plan = work.planned(config)
        if plan is not None:
            print(f"Memory: {plan.words}", file=sys.stderr)
        if arguments.check:
            report = read_folders(config.data, config.data.resolution or 0)
            print(f"{len(report.samples)} images.")
            print("\n".join(report.problems or ("Nothing is wrong with them.",)))
            return 0
        if arguments.find_rate:
            run = TrainingRun(replace(config, output=replace(config.output, resume=False)), work.places(), _told)
            try:
                found = find_rate(run)
            finally:
                run.close()
            print(json.dumps({"rate": found.rate, "losses": found.losses}))
            print(found.said, file=sys.stderr)
            return 0
        said: set[str] = set()

        def report_progress(told: Progress) -> None:
            for notice in told.notices:
                if notice not in said:
                    said.add(notice)
                    print(notice, file=sys.stderr)
            _told(told)

        finished = run_training(config, work.places(), report_progress)
    finally:
        services.queue.close()
    for notice in finished.notices:
        if notice not in said:
            print(notice, file=sys.stderr)
    print("\n".join(map(str, finished.files)))
    return 0


def _told(told: object) -> None:
    """One line that is written over, on a terminal; else a line for each tenth."""
    from modules.training.run import Progress, smoothed

    assert isinstance(told, Progress)
    losses = smoothed(told.history.loss)
    loss = f", loss {losses[-1][1]:.4f}" if losses else ""
    measured = f", held out {told.history.validation[-1][1]:.4f}" if told.history.validation else ""
    text = f"{told.phase}{loss}{measured}"
    if sys.stderr.isatty():
        print(f"\r{text:<78}", end="", file=sys.stderr, flush=True)
    elif told.total and int(told.done * 10 / told.total) != int((told.done - 1) * 10 / told.total):
        print(text, file=sys.stderr)
