"""How plots are drawn: one script and one style, for the page and for documents that work without the server."""

import base64
import hashlib
import html
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

SCRIPT = Path(__file__).parent / "plot.js"
STYLE = Path(__file__).parent / "plot.css"
STANDALONE_STYLE = Path(__file__).parent / "standalone.css"


def plot_place(spec: Mapping[str, Any], without_script: str = "") -> str:
    """An element in which the script draws what `fw.plot` (plot.js) takes. `without_script` is HTML that stands there
    until it does."""
    return f'<div data-plot="{html.escape(json.dumps(spec))}">{without_script}</div>'


def standalone_script() -> str:
    """The whole of the script element of a document, which draws all of its plots."""
    return SCRIPT.read_text(encoding="utf-8") + "window.featherweight.drawPlots();"


def standalone_style() -> str:
    """The style of a document's plots, dark and light by the reader's preference."""
    return STYLE.read_text(encoding="utf-8") + STANDALONE_STYLE.read_text(encoding="utf-8")


def script_source() -> str:
    """Return what a Content-Security-Policy has to name for `standalone_script` to run, and nothing else."""
    digest = hashlib.sha256(standalone_script().encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"
