"""`launch.py lora`: `example NAME` draws and trains one of our examples, `draw NAME` writes its images. Everything else
is trained by `launch.py train`."""

import argparse
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch

from lib_training.command import Shown
from lib_training.preview import PreviewRenderer, PreviewSample, write_card
from lib_training.run import Places, TrainingRun
from modules.cli.running import run_guarded
from modules.errors import InvalidValueError
from modules.models.detection.families import version_of_family
from recipes.loras import balloon as _balloon  # noqa: F401 - registers the example
from recipes.loras import blueprint as _blueprint  # noqa: F401 - registers the example
from recipes.loras.example import CONFIGS, EXAMPLES, LORAS, SHIPPED, Example, draw_images, write_images

GONE = "Error: lora train is now `launch.py train --folder FOLDER --preset style --name NAME` (docs/training.md).\n"


def main(argv: Sequence[str]) -> int:
    """Run the command; exit code 0, 1 for errors, 2 for wrong arguments."""
    if argv[:1] == ["train"]:
        sys.stderr.write(GONE)
        return 2
    arguments = _parser().parse_args(argv)
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    return run_guarded(lambda: int(arguments.run(arguments) or 0))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="launch.py lora", description="The example LoRAs of the bundled model.")
    parser.add_argument("--threads", type=int, default=0, help="CPU threads; 0: torch's choice")
    commands = parser.add_subparsers(required=True)
    names = f"one of: {', '.join(EXAMPLES)}"
    example = commands.add_parser("example", help="draw and train one of our examples")
    example.add_argument("name", help=names)
    example.add_argument("--output", type=Path, default=None, help="models/Lora/NAME.safetensors unless given")
    example.add_argument("--checkpoint", type=Path, default=SHIPPED, help="what the LoRA is for")
    example.add_argument("--steps", type=int, default=None, help="those of its preset unless given")
    example.add_argument("--images", type=int, default=None, help="how many are drawn")
    example.set_defaults(run=_example)

    draw = commands.add_parser("draw", help="write an example's images and captions into a folder")
    draw.add_argument("name", help=names)
    draw.add_argument("--folder", type=Path, required=True)
    draw.add_argument("--images", type=int, default=None)
    draw.set_defaults(run=_draw)
    return parser


def _draw(arguments: argparse.Namespace) -> None:
    write_images(arguments.folder, draw_images(EXAMPLES.get(arguments.name), arguments.images))


def _example(arguments: argparse.Namespace) -> None:
    example: Example = EXAMPLES.get(arguments.name)
    output: Path = arguments.output or LORAS / f"{arguments.name}.safetensors"
    if output.suffix != ".safetensors":
        raise InvalidValueError(f"{output.name}: the output must be a .safetensors file.")
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / arguments.name
        write_images(folder, draw_images(example, arguments.images))
        config = example.config(folder, str(output.resolve().with_suffix("")), arguments.checkpoint)
        training = replace(config.training, steps=arguments.steps or config.training.steps)
        config = replace(config, training=training, output=replace(config.output, resume=False, sample_every=0))
        shown = Shown()
        run = TrainingRun(config, Places(CONFIGS, output.parent, output.parent, Path(scratch)), shown)
        version = version_of_family(run.model.family.label)
        side_px = run.model.default_size_px
        try:
            shown.finished(run.finish())
        finally:
            run.close()
    write_card(output, version, example.description, example.activation)
    renderer = PreviewRenderer(arguments.checkpoint, output.parent, CONFIGS, torch.device("cpu"))
    try:
        prompt = f"{example.preview_prompt} <lora:{output.stem}:1>"
        drawing = PreviewSample(prompt=prompt, seed=example.preview_seed, side_px=side_px)
        renderer.draw(drawing).save(output.with_suffix(".png"))
    finally:
        renderer.close()
