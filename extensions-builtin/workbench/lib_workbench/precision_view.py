"""Results of the work on precision, as HTML: tables of a report, of a comparison, of a conversion."""

from collections.abc import Mapping
from html import escape
from typing import Any

from lib_workbench.precision_work import COMPARISON_TYPE, CONVERSION_TYPE
from modules.system.texts import page_text
from modules.ui.common.messages import note_box

REPORTS = "featherweight/v1/reports"
PARTS = {
    "unet": "UNet",
    "vae": "VAE",
    "text_encoder": page_text("Text encoder"),
    "text_encoder_2": page_text("Second text encoder"),
    "text_encoder_3": page_text("Third text encoder"),
}


def outcome_view(type: str, title: str, outcome: Mapping[str, Any]) -> str:
    """The result of a finished task of one of the three types."""
    if type == COMPARISON_TYPE:
        return _comparison(title, outcome)
    if type == CONVERSION_TYPE:
        done = page_text(
            f"{outcome['file']} is ready, {megabytes(outcome['size_bytes'])}. It is in the list of checkpoints."
        )
        return note_box(done) + _report(title, outcome)
    link = page_text(f'<p><a href="{REPORTS}/{escape(outcome["json"])}" target="_blank">Every tensor, as JSON</a></p>')
    return _report(title, outcome) + link


def megabytes(count: float) -> str:
    """Bytes for people."""
    return f"{count / 1e9:.2f} GB" if count >= 1e9 else f"{count / 1e6:.1f} MB"


def _report(title: str, outcome: Mapping[str, Any]) -> str:
    before, after = outcome["bytes_16"], outcome["bytes_stored"]
    rows = "".join(
        f"<tr><td>{escape(PARTS.get(part['component'], part['component']))}</td><td>{megabytes(part['bytes_16'])}</td>"
        f"<td>{megabytes(part['bytes_stored'])}</td><td>{part['bytes_stored'] / max(part['bytes_16'], 1):.0%}</td>"
        f"<td>{part['stored']}</td><td>{part['stays']}</td></tr>"
        for part in sorted(outcome["components"], key=lambda part: -part["bytes_16"])
    )
    worst = "".join(
        f"<tr><td>{item['error']:.2%}</td><td>{escape(item['name'])}</td>"
        f"<td>{'×'.join(map(str, item['shape']))}</td></tr>"
        for item in outcome["worst"]
    )
    saturated = (
        page_text(f"<p>{outcome['saturated']} weights exceed the format's range and are set to its largest value.</p>")
        if outcome["saturated"]
        else ""
    )
    notices = "".join(f"<p>{escape(notice)}</p>" for notice in outcome.get("notices", ()))
    error = outcome["mean_error"]
    lost = (
        page_text(f"the stored weights are off by {error:.2%} on average")
        if error
        else page_text("no weight is changed")
    )
    share = f"{after / max(before, 1):.0%}"
    sentence = page_text(
        f"{megabytes(after)} instead of {megabytes(before)} ({share}), all tensors of the file counted; {lost}."
    )
    return page_text(
        f"<h3>{escape(title)}</h3><p><b>{sentence}</b></p>{saturated}{notices}"
        '<table class="fw-table"><thead><tr><th>Part</th><th>In 16 bits</th><th>As stored</th><th>Share</th>'
        f"<th>Quantized tensors</th><th>Kept in 16 bit</th></tr></thead><tbody>{rows}</tbody></table>"
    ) + (
        page_text(
            "<details><summary>Layers with the largest errors</summary>"
            '<table class="fw-table"><thead><tr><th>Relative error</th><th>Tensor</th><th>Shape</th></tr></thead>'
            f"<tbody>{worst}</tbody></table></details>"
        )
        if worst
        else ""
    )


def _comparison(title: str, outcome: Mapping[str, Any]) -> str:
    page = f"{REPORTS}/{escape(outcome['page'])}"
    return page_text(
        f"<h3>{escape(title)}</h3><p><b>{escape(outcome['verdict'])}</b></p>"
        f'<p><a href="{page}" target="_blank">Open the report in a tab of its own</a> · '
        f'<a href="{REPORTS}/{escape(outcome["json"])}" target="_blank">Numbers as JSON</a></p>'
        f'<iframe class="fw-report" src="{page}" title="Report of the comparison"></iframe>'
    )
