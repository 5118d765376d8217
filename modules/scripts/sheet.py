"""Where controls stand that no page shows."""

from typing import Any

import gradio as gr


class Sheet(gr.Blocks):
    """Blocks that nothing is served from: controls are built in them for their values and limits.

    Gradio makes an application of a hundred routes for Blocks when they are made and again when they are closed, 0.1 s
    of the CPU for each script.
    """

    def queue(self, *args: Any, **keywords: Any) -> "Sheet":
        """Return the sheet: it has no events to queue."""
        return self

    def __exit__(self, *error: object) -> None:
        """Close the sheet; `outside_of_the_page` puts back what was open before."""
        self.exited = True
