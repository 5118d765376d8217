"""`python launch.py train CONFIG.yaml`: trains an adapter or an embedding as the file says; with `--folder` and
`--preset` as the page does. `--describe` prints a file with every key."""

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lib_training.config import TrainingConfig, changes_of, describe, read_config
from lib_training.presets import PRESETS, count_images, is_small, preset_config
from lib_training.work import TrainingWork
from modules.assembly import build_services
from modules.cli.running import flags_of, run_guarded
from modules.errors import InvalidValueError
from modules.flags.flags import MODELS, PATHS, Flags, add_arguments
from modules.processing.engine.chosen_checkpoint import stored_checkpoint
from modules.services import ForeignProgram, Services

if TYPE_CHECKING:
    from lib_training.run import Finished, Progress


def main(argv: Sequence[str], foreign: ForeignProgram | None = None) -> int:
    """Run the command; returns the exit code (0 done, 1 failed, 2 wrong arguments, 130 interrupted)."""
    if "--describe" in argv:
        print(describe(), end="")
        return 0
    arguments = _parser().parse_args(argv)
    try:
        return run_guarded(lambda: _run(arguments, flags_of(arguments), foreign))
    except KeyboardInterrupt:
        print("\nStopped; the same command goes on from the last step.", file=sys.stderr)
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="launch.py train", description="Train an adapter as a file says.")
    parser.add_argument("config", type=Path, nargs="?", help="a YAML file, see --describe and docs/training.md")
    parser.add_argument("--describe", action="store_true", help="print a configuration with every key, and stop")
    parser.add_argument("--check", action="store_true", help="look at the images and estimate memory, and stop")
    parser.add_argument("--find-rate", action="store_true", help="twenty steps that say which learning rate fits")
    parser.add_argument("--restart", action="store_true", help="start again, not from the state of a training cut off")
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", dest="changes", help="as training.steps=500"
    )
    group = parser.add_argument_group("without a file", "what the page asks for")
    group.add_argument("--folder", type=Path, help="of the images, with a .txt with the caption next to each")
    group.add_argument("--preset", choices=tuple(PRESETS), default="character", help="what is trained (%(default)s)")
    group.add_argument("--name", default="", help="of the file")
    group.add_argument("--trigger", default="", help="the word that calls it up, put before each caption")
    group.add_argument("--checkpoint", default="", help="what it is for; the one in use unless given")
    group.add_argument("--budget", type=float, default=None, metavar="GB", help="memory to use")
    add_arguments(parser, (PATHS, MODELS))
    return parser


def _config(arguments: argparse.Namespace, services: Services) -> TrainingConfig:
    """Read the file, or the preset. Raises `InvalidValueError` for neither or both."""
    changes = changes_of(arguments.changes)
    if (arguments.config is None) == (arguments.folder is None):
        raise InvalidValueError("Give either a YAML file, or --folder with images and --name.")
    if arguments.config is not None:
        return read_config(arguments.config, changes)
    return _preset_config(arguments, services, changes)


def _preset_config(
    arguments: argparse.Namespace, services: Services, changes: Mapping[str, Mapping[str, Any]]
) -> TrainingConfig:
    wanted = arguments.checkpoint or stored_checkpoint(services.settings.current, services.catalogue).name
    is_file = bool(arguments.checkpoint) and Path(arguments.checkpoint).exists()
    base = None if is_file else services.catalogue.default(wanted)
    return preset_config(
        arguments.preset,
        str(arguments.folder),
        arguments.name or arguments.folder.resolve().name,
        arguments.checkpoint if base is None else base.title,
        count_images(arguments.folder),
        arguments.trigger,
        arguments.budget,
        changes,
        is_small(Path(arguments.checkpoint) if base is None else base.path),
    )


def _run(arguments: argparse.Namespace, flags: Flags, foreign: ForeignProgram | None) -> int:
    services = build_services(flags, foreign=foreign)
    try:
        config = _config(arguments, services)
        if arguments.restart:
            config = replace(config, output=replace(config.output, resume=False))
        work = TrainingWork(services)
        work.check(config)
        from lib_training.finder import find_rate
        from lib_training.folders import read_folders
        from lib_training.run import TrainingRun, run_training

        config, plan = work.planned(config)
        if plan is not None:
            print(f"Memory: {plan.words}", file=sys.stderr)
        if arguments.check:
            report = read_folders(config.data, config.data.resolution or 0)
            print(f"{len(report.samples)} images.")
            print("\n".join(report.problems or ("No problems found.",)))
            return 0
        shown = Shown()
        if arguments.find_rate:
            run = TrainingRun(replace(config, output=replace(config.output, resume=False)), work.places(), shown)
            try:
                found = find_rate(run)
            finally:
                run.close()
            print(json.dumps({"rate": found.rate, "losses": found.losses}))
            print(found.said, file=sys.stderr)
            return 0
        finished = run_training(config, work.places(), shown)
    finally:
        services.dispatcher.close()
    shown.finished(finished)
    print("\n".join(map(str, finished.files)))
    return 0


class Shown:
    """Tells on the terminal how far a training is: one line that is written over, else a line for each tenth; and what
    there is to say, once."""

    def __init__(self) -> None:
        self._said: set[str] = set()

    def __call__(self, told: "Progress") -> None:
        """See `lib_training.run.Report`."""
        from lib_training.run import smoothed

        self._say(told.notices)
        losses = smoothed(told.history.loss)
        loss = f", loss {losses[-1][1]:.4f}" if losses else ""
        measured = f", held out {told.history.validation[-1][1]:.4f}" if told.history.validation else ""
        text = f"{told.phase}{loss}{measured}"
        if sys.stderr.isatty():
            print(f"\r{text:<78}", end="", file=sys.stderr, flush=True)
        elif told.total and int(told.done * 10 / told.total) != int((told.done - 1) * 10 / told.total):
            print(text, file=sys.stderr)

    def finished(self, finished: "Finished") -> None:
        """Say what was not said yet."""
        self._say(finished.notices)

    def _say(self, notices: Sequence[str]) -> None:
        for notice in notices:
            if notice not in self._said:
                self._said.add(notice)
                print(notice, file=sys.stderr)
