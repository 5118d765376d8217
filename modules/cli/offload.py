"""`python launch.py offload-clean`: delete the weights that were written for streaming from disk."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from modules.cli.running import flags_of, run_guarded
from modules.flags.flags import PATHS, add_arguments
from modules.memory.streaming.blobs import BlobStore
from modules.system.paths import resolve_paths

ROOT = Path(__file__).resolve().parent.parent.parent
GB = 1_000_000_000


def main(argv: Sequence[str]) -> int:
    """Say what the folder holds, and delete what was unused for longest. Exit code 0, or 1 for errors.

    A program that streams from there at the moment fails with its next image, and writes again what it needs.
    """
    arguments = _parser().parse_args(argv)
    return run_guarded(lambda: _run(arguments))


def _run(arguments: argparse.Namespace) -> int:
    paths = resolve_paths(flags_of(arguments), ROOT)
    folder = Path(arguments.offload_dir).expanduser().absolute() if arguments.offload_dir else paths.offload_dir
    try:
        store = BlobStore(folder)
        held = store.files()
        print(f"{folder}: {len(held)} files, {sum(size for _, size, _ in held) / 1e6:.0f} MB")
        if arguments.list:
            return 0
        count, freed = store.clean(round(arguments.keep_gb * GB))
        print(f"deleted {count} files, {freed / 1e6:.0f} MB")
    except OSError as error:
        print(f"Error: {folder} cannot be cleaned ({error.strerror}). Delete the folder by hand.", file=sys.stderr)
        return 1
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="launch.py offload-clean", description="Delete weights that were written for streaming from disk."
    )
    parser.add_argument(
        "--offload-dir", metavar="FOLDER", help="the folder (default: cache/offload in the data folder)"
    )
    parser.add_argument("--keep-gb", type=_gigabytes, default=0.0, help="leave so much of what was used last")
    parser.add_argument("--list", action="store_true", help="say what there is, and delete nothing")
    add_arguments(parser, (PATHS,))
    return parser


def _gigabytes(text: str) -> float:
    value = float(text)
    if not 0 <= value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text} is not 0 or more")
    return value
