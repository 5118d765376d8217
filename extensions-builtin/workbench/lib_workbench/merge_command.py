"""`python launch.py merge A [B] [C] --method ... --multiplier ... --output NAME`: a checkpoint out of one, two or three
others, tensor by tensor."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from lib_workbench.merge_work import Merger
from lib_workbench.merging.request import SUFFIX, ConfigSource, MergeMethod, MergeOptions
from modules.assembly import build_services
from modules.cli.running import flags_of, run_guarded
from modules.errors import InvalidValueError
from modules.flags.flags import MODELS, PATHS, Flags, add_arguments
from modules.memory.formats.catalog import all_formats
from modules.models.autoencoders.files import BUILT_IN
from modules.models.files.catalogue import CheckpointCatalogue, HashCache
from modules.services import ForeignProgram

METHODS = {
    "none": MergeMethod.NO_INTERPOLATION,
    "weighted-sum": MergeMethod.WEIGHTED_SUM,
    "add-difference": MergeMethod.ADD_DIFFERENCE,
}
BY_COUNT = {method.models: name for name, method in METHODS.items()}
CONFIGS = {"any": ConfigSource.ANY, "b": ConfigSource.B, "c": ConfigSource.C, "none": ConfigSource.NONE}


def main(argv: Sequence[str], foreign: ForeignProgram | None = None) -> int:
    """Run the command; returns the exit code (0 done, 1 failed, 2 wrong arguments, 130 interrupted)."""
    arguments = _parser().parse_args(argv)
    try:
        return run_guarded(lambda: _run(arguments, flags_of(arguments), foreign))
    except KeyboardInterrupt:
        print("\nInterrupted; nothing was written.", file=sys.stderr)
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="launch.py merge", description="Make a checkpoint out of others.")
    parser.add_argument(
        "models", nargs="+", metavar="MODEL", help="A, B and C: files, or names, titles or hashes of installed models"
    )
    parser.add_argument("--method", choices=list(METHODS), help="default: by the number of models")
    parser.add_argument("--multiplier", type=float, default=0.3, metavar="M", help="0 to 1 (default 0.3); 0 gives A")
    parser.add_argument(
        "--output",
        default="",
        metavar="NAME",
        help="name in the folder of checkpoints, or a path that begins with / or a dot (default: from the models)",
    )
    parser.add_argument("--format", default="fp16", choices=all_formats(), help="default fp16")
    parser.add_argument("--bake-in-vae", default=BUILT_IN, metavar="NAME", help="a VAE file's name")
    parser.add_argument("--discard", default="", metavar="REGEX", help="leave out tensors in whose name it is found")
    parser.add_argument("--config-from", default="any", choices=list(CONFIGS), help="whose YAML is copied")
    parser.add_argument("--skip", action="append", default=[], metavar="REGEX", help="layers that stay in 16 bits")
    parser.add_argument("--keep-text-encoder", action="store_true", help="leave text encoders in 16 bits")
    parser.add_argument("--metadata", default="", metavar="JSON", help="a table that is added to the metadata")
    parser.add_argument("--no-metadata", action="store_true", help="write no metadata at all")
    parser.add_argument("--no-recipe", action="store_true", help="do not record how it was made")
    parser.add_argument("--no-copied-metadata", action="store_true", help="take nothing over from the models")
    add_arguments(parser, (PATHS, MODELS))
    return parser


def _run(arguments: argparse.Namespace, flags: Flags, foreign: ForeignProgram | None) -> int:
    services = build_services(flags, foreign=foreign)
    try:
        paths = services.paths
        folder, name = _target(arguments.output, paths.checkpoint_dirs[0])
        files = [Path(text).absolute() for text in arguments.models if Path(text).is_file()]
        hashes = HashCache(paths.cache_dir / "hashes.json")
        catalogue = CheckpointCatalogue(paths.checkpoint_dirs, hashes, files)
        configs = paths.root / "configs"
        merger = Merger(catalogue, services.engine.vaes, folder, configs, hashing=not flags.no_hashing)
        request = merger.resolve(_options(arguments, name))
        result = merger.run(request, _progress, arguments.skip, not arguments.keep_text_encoder)
    finally:
        services.dispatcher.close()
    for notice in result.notices:
        print(notice, file=sys.stderr)
    print(f"{result.tensors} tensors, {result.size_bytes / 1e6:.1f} MB, {result.seconds:.1f} s", file=sys.stderr)
    print(result.path)
    return 0


def _options(arguments: argparse.Namespace, name: str) -> MergeOptions:
    models = arguments.models
    if len(models) not in BY_COUNT:
        raise InvalidValueError(f"{len(models)} models were given. A merge takes one, two or three.")
    method = METHODS[arguments.method or BY_COUNT[len(models)]]
    if len(models) > method.models:
        raise InvalidValueError(f"{method.value} takes {method.models} models, but {len(models)} were given.")
    a, b, c = ([str(Path(text).absolute()) if Path(text).is_file() else text for text in models] + ["", ""])[:3]
    return MergeOptions(
        primary=a,
        secondary=b,
        tertiary=c,
        method=method.value,
        multiplier=arguments.multiplier,
        name=name,
        storage=arguments.format,
        vae=arguments.bake_in_vae,
        discard=arguments.discard,
        config_source=CONFIGS[arguments.config_from].value,
        save_metadata=not arguments.no_metadata,
        add_recipe=not arguments.no_recipe,
        copy_metadata=not arguments.no_copied_metadata,
        metadata_json=arguments.metadata,
    )


def _target(output: str, checkpoints: Path) -> tuple[Path, str]:
    """Folder and name of the result."""
    if not output.startswith((".", "~")) and not Path(output).is_absolute():
        return checkpoints, output
    path = Path(output).expanduser().absolute()
    if path.suffix != SUFFIX:
        raise InvalidValueError(f"--output {output}: a path must end in {SUFFIX}.")
    return path.parent, path.name


def _progress(done: float, total: float, phase: str) -> None:
    if sys.stderr.isatty():
        end = "\n" if done >= total else ""
        print(f"\r{done / max(total, 1):4.0%} {phase:<60}", end=end, file=sys.stderr, flush=True)
