"""Where images appear. The page's script fills it from the job's result; nothing here knows of a job."""

import gradio as gr

from modules.services import Services

PANEL = """
<section class="fw-output" aria-label="Images">
  <div id="{tab}_progress" class="fw-progress" hidden>
    <div class="fw-bar" role="progressbar" aria-label="Progress" aria-valuemin="0" aria-valuemax="100"
         aria-valuenow="0"><span></span></div>
    <p class="fw-progress-text" aria-live="polite"></p>
  </div>
  <div id="{tab}_gallery" class="fw-gallery">
    <div class="fw-stage"><p class="fw-empty">Images appear here.<br>Ctrl+Enter generates.</p></div>
    <button type="button" class="fw-step" data-step="-1" aria-label="Previous image" title="Previous image" hidden
            ></button><button type="button" class="fw-step" data-step="1" aria-label="Next image" title="Next image"
            hidden></button>
    <div class="fw-thumbs" role="listbox" aria-label="Images of this job" aria-orientation="horizontal"></div>
  </div>
  <div id="image_buttons_{tab}" class="fw-image-buttons">
  <div id="{tab}_image_tools" class="fw-tools" hidden>
    <button type="button" id="save_{tab}" data-do="save" data-job
            title="Save to the folder of the Save button, with a line in log.csv">Save</button>
    <a data-do="download" download>Download</a>
    <button type="button" id="save_zip_{tab}" data-do="zip" data-job
            title="Download all images of this job in one archive">Zip</button>
    {upscale}
    <button type="button" id="{tab}_open_folder" data-do="folder" data-job data-local
            title="Open the folder of this image">Open folder</button>
    <button type="button" data-do="copy" title="Copy the infotext">Copy parameters</button>
    <button type="button" data-do="paste" title="Put this image's parameters into the form">Use parameters</button>
    <a id="{tab}_precision_report" data-link="report" target="_blank"
       title="Compare the images of this grid, with savings and errors">Compare precisions</a>
    <button type="button" id="{tab}_delete" data-do="remove" data-job
            title="Move the file to the trash folder of the outputs (Delete)">Delete</button>
  </div>
  <div id="{tab}_send_tools" class="fw-tools fw-send" role="group" aria-label="Send to" hidden></div>
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

UPSCALE = """<button type="button" id="{tab}_upscale" data-do="upscale" data-job
            title="Make this image again with hires fix"
            >Upscale this</button>"""


def build_output_panel(tab: str, services: Services) -> None:
    """The panel: progress, stage, thumbnails, tools, memory, infotext. `tab` begins the ids of its elements."""
    upscale = UPSCALE.format(tab=tab) if tab == "txt2img" else ""
    gr.HTML(PANEL.format(tab=tab, upscale=upscale), elem_id=f"{tab}_output")
    if services.foreign is not None and services.scripts.is_page_extended:
        services.foreign.build_results(tab)
    # The last control of a tab, by whose id extensions know that all others are there.
    gr.Button("", visible=False, elem_id=f"{tab}_generation_info_button")
