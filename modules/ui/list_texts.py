"""`python launch.py texts [NAME]`: the texts of the page that a translation has not."""

import argparse
import asyncio
import json
import tempfile
from collections.abc import Sequence
from typing import Any

from modules.assembly import build_services
from modules.cli.running import run_guarded
from modules.flags.flags import Flags
from modules.services import ForeignProgram, Services
from modules.ui.app import build_page
from modules.ui.common.localization import find_localizations, localization_folders, read_localization
from modules.ui.page.texts import page_texts


def main(argv: Sequence[str], foreign: ForeignProgram | None = None) -> int:
    """Print a JSON object to be filled in, `{text: ""}`; without a name, of all texts. Exit code 0, or 1 for errors."""
    parser = argparse.ArgumentParser(prog="launch.py texts", description="List texts that are not translated.")
    parser.add_argument("name", nargs="?", default="", help="of a translation, such as de")
    parser.add_argument("--part", help="only this part of the page: txt2img, settings, browser ...")
    arguments = parser.parse_args(argv)
    return run_guarded(lambda: _run(arguments.name, arguments.part, foreign))


def _config(services: Services) -> dict[str, Any]:
    """Gradio's description of the page; built in a loop, because Gradio leaves one open where none is running."""

    async def build() -> dict[str, Any]:
        return dict(build_page(services).blocks.config)

    return asyncio.run(build())


def _run(name: str, part: str | None, foreign: ForeignProgram | None) -> int:
    with tempfile.TemporaryDirectory() as folder:  # none of the user's files is opened or changed
        services = build_services(Flags(data_dir=folder), foreign=foreign)
        try:
            texts = page_texts(_config(services))
            files = find_localizations(localization_folders(services.paths)).get(name, [])
        finally:
            services.dispatcher.close()
            services.history.close()
            services.spool.close()
    known = read_localization(name, files).texts
    wanted = [text for area, found in texts.items() if part in (None, area) for text in found if text not in known]
    print(json.dumps(dict.fromkeys(wanted, ""), ensure_ascii=False, indent=1))
    return 0
