"""The training command: `python -m recipes.control encode|train|export`, each resumable."""

import argparse
import logging
from pathlib import Path

import torch

from recipes.control.lessons import SHARD_IMAGES, Lessons, encode_shard, shard_path
from recipes.control.net import layer_names, write_net
from recipes.control.training import ControlOptions, ControlTrainer, train_control
from recipes.scenes.model import load_model

SHIPPED = Path("models/Stable-diffusion/featherweight-scenes.safetensors")
FILE = Path("models/ControlNet/featherweight-scenes_canny.safetensors")
STATE = "control.pt"

log = logging.getLogger("control")


def main() -> None:
    """Parse the command line and run one step of the training."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", datefmt="%H:%M:%S")
    arguments = _parser().parse_args()
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    arguments.run(arguments)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m recipes.control", description=__doc__)
    commands = parser.add_subparsers(required=True)
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("--start", type=Path, default=SHIPPED, help="the checkpoint that is controlled")
    common.add_argument("--folder", type=Path, default=Path("training-data/control"), help="lessons and snapshot")
    common.add_argument("--device", default="cpu")
    common.add_argument("--threads", type=int, default=0, help="CPU threads; 0: torch's choice")

    encode = commands.add_parser("encode", parents=[common], help="draw images, find their edges, encode them")
    encode.add_argument("--images", type=int, default=1536)
    encode.set_defaults(run=_encode)

    for name, run, words in (
        ("train", _train, "train the control net on the lessons"),
        ("export", _export, "write the moving average as a Control-LoRA"),
    ):
        command = commands.add_parser(name, parents=[common], help=words)
        command.add_argument("--minutes", type=float, default=40.0)
        command.add_argument("--steps", type=int, default=None)
        command.add_argument("--batch", type=int, default=8)
        command.add_argument("--target", type=Path, default=FILE)
        command.set_defaults(run=run)
    commands.choices["train"].add_argument("--export", action="store_true", help="write the file at the end, too")
    return parser


def _encode(arguments: argparse.Namespace) -> None:
    vae = load_model(arguments.start).vae.to(arguments.device)
    for number in range(arguments.images // SHARD_IMAGES):
        if not shard_path(arguments.folder, number).exists():
            log.info("%s", encode_shard(vae, arguments.folder, number, device=arguments.device))


def _trainer(arguments: argparse.Namespace) -> ControlTrainer:
    options = ControlOptions(
        minutes=arguments.minutes, steps=arguments.steps, batch=arguments.batch, device=arguments.device
    )
    return ControlTrainer(load_model(arguments.start), options)


def _train(arguments: argparse.Namespace) -> None:
    trainer, lessons = _trainer(arguments), Lessons(arguments.folder)
    lessons.refresh()
    log.info("%d images", len(lessons))
    for step, loss in train_control(trainer, lessons, arguments.folder / STATE):
        log.info("step %d loss %.4f after %.1f minutes", step, loss, trainer.seconds / 60)
    if arguments.export:
        _write(trainer, arguments)


def _export(arguments: argparse.Namespace) -> None:
    trainer = _trainer(arguments)
    trainer.resume(arguments.folder / STATE)
    _write(trainer, arguments)


def _write(trainer: ControlTrainer, arguments: argparse.Namespace) -> None:
    trainer.use_average()
    about = {"title": "Edges of the bundled model", "base": arguments.start.stem, "steps": str(trainer.step)}
    write_net(trainer.net, layer_names(trainer.net), arguments.target, about)
    log.info("wrote %s after %d steps", arguments.target, trainer.step)


if __name__ == "__main__":
    main()
