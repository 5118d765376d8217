"""The Queue tab: a frame that the page's script fills, so that it follows the queue without the form."""

import gradio as gr

from modules.jobs.when_done import WhenDone

WORDS = {
    WhenDone.NOTHING: "Nothing",
    WhenDone.UNLOAD: "Unload the model",
    WhenDone.EXIT: "Stop the server",
    WhenDone.SLEEP: "Put the machine to sleep",
    WhenDone.COMMAND: "Run the command of the settings",
}


def build_queue_tab() -> None:
    """Build the tab's contents inside of the tab that is open now."""
    choices = "".join(f'<option value="{action.value}">{word}</option>' for action, word in WORDS.items())
    gr.HTML(
        '<div id="fw_queue"><div class="fw-queue-bar">'
        '<button type="button" data-do="pause" aria-pressed="false">Pause</button>'
        '<button type="button" data-do="clear">Cancel all queued</button>'
        '<button type="button" data-do="retry">Retry failed</button>'
        f'<label>When done <select id="fw_queue_done">{choices}</select></label>'
        '<span class="fw-queue-paused" hidden>Paused: no new job starts</span></div>'
        '<p class="fw-queue-status" role="status"></p><div class="fw-queue-lists"></div></div>',
        elem_id="fw_queue_box",
    )
