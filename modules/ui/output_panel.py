"""Where images appear. The page's script fills it from the job's result; nothing here knows of a job."""

import gradio as gr

PANEL = """
<section class="fw-output" aria-label="Images">
  <div id="{tab}_progress" class="fw-progress" hidden>
    <div class="fw-bar" role="progressbar" aria-label="Progress" aria-valuemin="0" aria-valuemax="100"
         aria-valuenow="0"><span></span></div>
    <p class="fw-progress-text" aria-live="polite"></p>
  </div>
  <div id="{tab}_gallery" class="fw-gallery">
    <div class="fw-stage"><p class="fw-empty">Images appear here.<br>Ctrl+Enter generates.</p></div>
    <div class="fw-thumbs" role="listbox" aria-label="Images of this job" aria-orientation="horizontal"></div>
  </div>
  <div id="{tab}_image_tools" class="fw-tools" hidden>
    <button type="button" data-do="save" title="Save into the folder of the Save button">Save</button>
    <a data-do="download" download>Download</a>
    <button type="button" data-do="folder" title="Open the folder it was saved in">Open folder</button>
    <button type="button" data-do="copy" title="Copy the infotext">Copy parameters</button>
    <button type="button" data-do="paste" title="Put this image's parameters into the form">Use parameters</button>
  </div>
  <div id="{tab}_messages" aria-live="polite"></div>
  <details id="{tab}_memory" class="fw-memory" hidden>
    <summary>Memory</summary>
    <div class="fw-memory-plot"></div>
  </details>
  <pre id="{tab}_infotext" class="fw-infotext" tabindex="0" aria-label="Infotext of the selected image"
       hidden></pre>
</section>
"""


def build_output_panel(tab: str) -> None:
    """The panel of a tab: progress, stage, thumbnails, tools, memory, infotext."""
    gr.HTML(PANEL.format(tab=tab), elem_id=f"{tab}_output")
