"""`launch.py lora`: the trainer's command, with `example NAME` that trains one of our examples, and `draw NAME` that
writes its images."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from modules.models.families.registry import version_of_family
from modules.training.command import (
    LORAS,
    check_output,
    common_arguments,
    load_model_of,
    options_of,
    train_and_write,
    training_arguments,
    write_preview,
)
from modules.training.command import main as train_main
from modules.training.images import write_images
from modules.training.preview import write_card
from recipes.loras import balloon as _balloon  # noqa: F401 - registers the example
from recipes.loras import blueprint as _blueprint  # noqa: F401 - registers the example
from recipes.loras.example import EXAMPLES, draw_images


def main(argv: Sequence[str]) -> int:
    """Run the command; exit code 0, or 1 for errors."""
    return train_main(argv, _add_commands)


def _add_commands(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    names = f"one of: {', '.join(EXAMPLES)}"
    example = commands.add_parser("example", parents=[training_arguments()], help="draw and train one of our examples")
    example.add_argument("name", help=names)
    example.add_argument("--output", type=Path, default=None, help="models/Lora/NAME.safetensors unless given")
    example.set_defaults(run=_example)

    draw = commands.add_parser(
        "draw", parents=[common_arguments()], help="write an example's images and captions into a folder"
    )
    draw.add_argument("name", help=names)
    draw.add_argument("--folder", type=Path, required=True)
    draw.add_argument("--images", type=int, default=None)
    draw.set_defaults(run=_draw)


def _draw(arguments: argparse.Namespace) -> None:
    write_images(arguments.folder, draw_images(EXAMPLES.get(arguments.name), arguments.images))


def _example(arguments: argparse.Namespace) -> None:
    example = EXAMPLES.get(arguments.name)
    options = options_of(arguments, example.options)
    output = arguments.output or LORAS / f"{arguments.name}.safetensors"
    check_output(output)
    model = load_model_of(arguments)
    train_and_write(arguments, model, draw_images(example), options, output, arguments.name, example.activation)
    write_card(output, version_of_family(model.family.label), example.description, example.activation)
    prompt = arguments.preview_prompt or example.preview_prompt
    seed = example.preview_seed if arguments.preview_seed is None else arguments.preview_seed
    write_preview(arguments, model, output, prompt, seed)
