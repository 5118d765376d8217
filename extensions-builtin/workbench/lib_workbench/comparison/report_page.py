"""The comparison of precisions as a page of its own: a verdict, a table, the images, and how to read them.

Everything is inside of the file (images as data) and nothing is loaded from elsewhere. The only script that runs draws
the plot, as on the page; without it the plot's numbers stand there as a table.
"""

from __future__ import annotations

import base64
import html
import io
import json
from collections.abc import Sequence

from PIL import Image, ImageChops

from lib_workbench.comparison.compare import Row, as_json
from lib_workbench.comparison.verdict import closeness, megabytes, name_of, verdict
from modules.plots.drawing import plot_place, standalone_script, standalone_style

AMPLIFIED = 8
MAX_COLUMNS = 6


def as_html(rows: Sequence[Row], prompts: Sequence[str], title: str, made_with: str = "") -> str:
    """The page. `title` names the model, `made_with` says how the images were made (steps, size, seed)."""
    first = rows[0]
    data = json.dumps(as_json(rows, prompts, title)).replace("<", "\\u003c")
    return PAGE.format(
        title=html.escape(title),
        made_with=f"<p class='with'>{html.escape(made_with)}</p>" if made_with else "",
        verdict=html.escape(verdict(rows)),
        first=html.escape(name_of(first)),
        table="\n".join(_table_row(row, first, any(row.peak_memory_bytes for row in rows)) for row in rows),
        images="\n".join(_images_of(rows, index, prompt) for index, prompt in enumerate(prompts)),
        chart=_chart(rows),
        columns=min(len(rows), MAX_COLUMNS),
        peak_head="<th>Peak memory</th>" if any(row.peak_memory_bytes for row in rows) else "",
        data=data,
        plot_style=standalone_style(),
        plot_script=standalone_script(),
    )


PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>Precision comparison: {title}</title>
<style>
:root {{ color-scheme: light dark; --line: #8885; --soft: #8882; --good: #2563eb; }}
body {{ font: 16px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 88rem; padding: 0 1rem; }}
h1 {{ margin: 0; font-size: 1.6rem; }} h2 {{ margin: 2.2rem 0 .6rem; font-size: 1.2rem; }} .with {{ opacity: .75; }}
.verdict {{ font-size: 1.15rem; border-left: 4px solid var(--good); background: var(--soft); padding: .8rem 1.1rem; }}
table {{ border-collapse: collapse; }} th, td {{ padding: .45rem 1.4rem .45rem 0; text-align: left; }}
thead th {{ font-size: .85rem; opacity: .75; font-weight: 600; }} tbody tr {{ border-top: 1px solid var(--line); }}
td.n {{ font-variant-numeric: tabular-nums; white-space: nowrap; }} small {{ opacity: .75; }}
.bar {{ display: block; height: 6px; background: var(--good); border-radius: 3px; margin-top: .2rem; }}
.row {{ display: grid; grid-template-columns: repeat({columns}, minmax(9rem, 22rem)); gap: 1.2rem; overflow-x: auto; }}
figure {{ margin: 0; font-size: .9rem; }}
figure img {{ width: 100%; height: auto; display: block; border-radius: 4px; }} figcaption b {{ display: block; }}
summary {{ cursor: pointer; margin: .8rem 0; }} dt {{ font-weight: 600; }} dd {{ margin: 0 0 .5rem; }}
{plot_style}
</style></head><body>
<h1>Precision comparison</h1>
<p>{title}</p>
{made_with}
<p class="verdict">{verdict}</p>
<table><thead><tr><th>Weights stored as</th><th>Memory for weights</th><th>Time a step</th>{peak_head}
<th>Images, against {first}</th></tr></thead><tbody>
{table}
</tbody></table>
{images}
{chart}
<h2>How to read this</h2>
<dl>
<dt>Memory for weights</dt><dd>What the model's weights take while it is loaded: megabytes (10<sup>6</sup> bytes), and
the share of the first row's.</dd>
<dt>Time a step</dt><dd>The median of all sampling steps, in milliseconds. A few percent either way are noise.</dd>
<dt>Peak memory</dt><dd>The most that the GPU held during an image; left out where the device does not
count.</dd>
<dt>PSNR</dt><dd>How close two images are, in decibels; higher is closer. From 40 dB on no difference can be seen,
from 30 dB it is hard to see, below 20 dB it is another image.</dd>
<dt>SSIM</dt><dd>How alike their structures are: 1 is equal, 0 unrelated.</dd>
<dt>Another image is not a worse one</dt><dd>Rounding the weights moves an image as another seed would, a little:
look whether it is still good, not only whether it is the same.</dd>
</dl>
<script type="application/json" id="data">{data}</script>
<script>{plot_script}</script>
</body></html>
"""


CHART = """<h2>Where the images part</h2>
<p>The largest difference of the latents from those of {first}, step by step (mean over the prompts; latents are about
1 in size).</p>
{chart}"""


def _table_row(row: Row, first: Row, with_peak: bool) -> str:
    share = row.weight_bytes / max(first.weight_bytes, 1)
    of_16 = row.weight_bytes / max(row.fp16_bytes, 1)
    weights = f"{megabytes(row.weight_bytes)} <small>{share:.0%}"
    if first.weight_bytes != first.fp16_bytes:
        weights += f", {of_16:.0%} of 16 bit"
    bar = f'</small><span class="bar" style="width:{max(share, 0.01) * 9:.2f}rem"></span>'
    factor = row.seconds_per_step / first.seconds_per_step if first.seconds_per_step else 1.0
    time = f"{row.seconds_per_step * 1e3:.0f} ms" + ("" if row is first else f" <small>{factor:.2f} ×</small>")
    peak = f'<td class="n">{megabytes(row.peak_memory_bytes or 0)}</td>' if with_peak else ""
    if row is first:
        close = "<small>what the others are measured against</small>"
    elif row.mean_psnr_db == float("inf"):
        close = "identical"
    else:
        close = f"{closeness(row.mean_psnr_db)} <small>PSNR {row.mean_psnr_db:.1f} dB, SSIM {row.mean_ssim:.3f}</small>"
    name = html.escape(name_of(row))
    return (
        f'<tr><td><b>{name}</b></td><td class="n">{weights}{bar}</td><td class="n">{time}</td>'
        f"{peak}<td>{close}</td></tr>"
    )


def _images_of(rows: Sequence[Row], index: int, prompt: str) -> str:
    first = rows[0]
    figures = "".join(_figure(row, row.images[index], _caption(row, first, index)) for row in rows)
    differences = "".join(
        _figure(row, _difference(row.images[index], first.images[index]), "") if row is not first else "<span></span>"
        for row in rows
    )
    more = (
        f"<details><summary>Differences, {AMPLIFIED} times as strong</summary>"
        f'<div class="row">{differences}</div></details>'
        if len(rows) > 1
        else ""
    )
    return f'<h2>{html.escape(prompt)}</h2><div class="row">{figures}</div>{more}'


def _figure(row: Row, image: Image.Image, caption: str) -> str:
    name = html.escape(name_of(row))
    return (
        f'<figure><img src="{_data_uri(image)}" alt="{name}"><figcaption><b>{name}</b>{caption}</figcaption></figure>'
    )


def _caption(row: Row, first: Row, index: int) -> str:
    if row is first:
        return ""
    value = row.psnr_db[index]
    if value == float("inf"):
        return "identical"
    return f"{closeness(value)}<br>PSNR {value:.1f} dB, SSIM {row.ssim[index]:.3f}"


def _difference(image: Image.Image, other: Image.Image) -> Image.Image:
    """The absolute difference of two images, amplified; black where they are equal."""
    difference = ImageChops.difference(image.convert("RGB"), other.convert("RGB"))
    return difference.point(lambda level: min(level * AMPLIFIED, 255))


def _chart(rows: Sequence[Row]) -> str:
    """The latents' differences over the steps, a line a format; nothing where the latents are not known."""
    if not any(differences for row in rows for differences in row.latent_differences):
        return ""
    lines = [(name_of(row), _mean_of(row.latent_differences)) for row in rows[1:]]
    if max((len(line) for _, line in lines), default=0) < 2 or not any(max(line, default=0) for _, line in lines):
        return CHART.format(first=html.escape(name_of(rows[0])), chart="<p>There is no difference.</p>")
    spec = {
        "label": "Differences of latents by step",
        "lines": [{"name": name, "points": list(enumerate(line, start=1))} for name, line in lines],
        "fromZero": True,
        "x": "step",
        "y": "size",
    }
    return CHART.format(first=html.escape(name_of(rows[0])), chart=plot_place(spec, _numbers(lines)))


def _numbers(lines: Sequence[tuple[str, Sequence[float]]]) -> str:
    """The lines as a table, for readers without scripts."""
    head = "".join(f"<th>{html.escape(name)}</th>" for name, _ in lines)
    rows = "".join(
        f"<tr><td>step {step + 1}</td>"
        + "".join(f'<td class="n">{line[step]:.2g}</td>' if step < len(line) else "<td></td>" for _, line in lines)
        + "</tr>"
        for step in range(max(len(line) for _, line in lines))
    )
    return f"<table><thead><tr><th></th>{head}</tr></thead><tbody>{rows}</tbody></table>"


def _mean_of(lists: Sequence[Sequence[float]]) -> list[float]:
    """The mean of several lists, entry by entry, as far as all of them go."""
    return [sum(values) / len(values) for values in zip(*lists, strict=False)]


def _data_uri(image: Image.Image) -> str:
    stream = io.BytesIO()
    image.save(stream, "PNG")
    return f"data:image/png;base64,{base64.b64encode(stream.getvalue()).decode()}"
