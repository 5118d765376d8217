"""`launch.py get NAME|ADDRESS`: download a model into the folder where it belongs; `get` alone lists the known ones."""

import argparse
import os
from collections.abc import Sequence
from pathlib import Path

from modules.assembly import ROOT
from modules.cli.running import StatusLine, flags_of, run_guarded
from modules.downloads.downloads import DownloadRequest, Downloads
from modules.downloads.known import KnownModel
from modules.downloads.transport import TOKENS_FILE, FileTransport, Tokens
from modules.errors import Interrupted
from modules.flags.flags import MODELS, PATHS, Flags, add_arguments
from modules.jobs.work.downloads import Rate
from modules.models.detection.files import detected_at
from modules.models.files.catalogue import HashCache
from modules.system.paths import resolve_paths

GB = 1e9


def main(argv: Sequence[str]) -> int:
    """Exit code 0 where the file is there, 1 for errors, 2 where `--look` says that it does not fit, 130 for Ctrl+C."""
    arguments = _parser().parse_args(argv)
    return run_guarded(lambda: _run(arguments, flags_of(arguments)))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="launch.py get", description="Download a model.")
    parser.add_argument("source", nargs="?", help="a name of the list, owner/repository/file, or an https address")
    parser.add_argument(
        "--look",
        action="store_true",
        help="say what it is and whether it fits; download nothing. A path: of a file here",
    )
    parser.add_argument("--name", default="", help="the name that the file gets")
    parser.add_argument("--folder", default="", help="where it goes: Stable-diffusion, VAE, text_encoder, Lora ...")
    parser.add_argument("--allow-pickle", action="store_true", help="allow .ckpt and .pt for this file")
    parser.add_argument("--with-parts", action="store_true", help="text encoders and VAE of a listed model as well")
    add_arguments(parser, (PATHS, MODELS))
    return parser


def _run(arguments: argparse.Namespace, flags: Flags) -> int:
    paths = resolve_paths(flags, ROOT)
    transport = FileTransport(Tokens.read(paths.data_dir / TOKENS_FILE, os.environ))
    downloads = Downloads(paths, transport, remember=HashCache(paths.cache_dir / "hashes.json").remember)
    try:
        if not arguments.source:
            print("\n".join(map(_listed, downloads.known.values())))
            return 0
        if arguments.look and Path(arguments.source).exists():
            return _describe(Path(arguments.source))
        asked = DownloadRequest(arguments.source, arguments.name, arguments.folder, arguments.allow_pickle)
        downloads.checked(asked)
        if arguments.look:
            return _look(downloads, asked)
        wanted = [asked]
        if arguments.with_parts:
            wanted += [DownloadRequest(part.name) for part in downloads.find(asked).parts]
        for request in wanted:
            _get(downloads, request)
        return 0
    except KeyboardInterrupt as error:
        raise Interrupted("Stopped; what came is kept, and the same command goes on from there.") from error
    finally:
        transport.close()


def _describe(path: Path) -> int:
    """Say what a file or a folder on this machine is."""
    found = detected_at(path)
    print(f"{path.name}: {found.refusal or found.line}")
    if found.folder:
        print(f"It belongs into {found.folder}.")
    if found.missing:
        print(f"It needs: {'; '.join(need.title for need in found.missing)}.")
    return 1 if found.refusal else 0


def _look(downloads: Downloads, request: DownloadRequest) -> int:
    found = downloads.find(request)
    print(f"{found.name}: {found.line}\nIt goes to {downloads.folders[found.kind.folder]}.")
    if found.parts:
        print(f"It needs: {', '.join(f'{part.label} ({part.name}, {part.size_gb} GB)' for part in found.parts)}.")
    verdict = downloads.judged(found)
    if verdict.text:
        print(verdict.text)
    return 2 if verdict.fits is False else 0


def _get(downloads: Downloads, request: DownloadRequest) -> None:
    rate, line = Rate(), StatusLine()
    there = downloads.get(request, lambda done, total: line.show(lambda: rate.words(done, total)))
    line.end()
    state = "was there already" if there.was_there else "is there"
    print(f"{there.path} {state}, {there.size_bytes / GB:.2f} GB, sha256 {there.sha256}")


def _listed(model: KnownModel) -> str:
    parts = f" Needs: {', '.join(model.parts)}." if model.parts else ""
    good_for = f" {model.good_for}." if model.good_for else ""
    return f"{model.name:<16} {model.size_gb:6.2f} GB  {model.label}.{good_for} License: {model.licence}.{parts}"
