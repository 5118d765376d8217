"""X/Y/Z plot: one image for every combination of up to three axes' values, in a grid with legends."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from PIL import Image

from modules.errors import FeatherweightError, InvalidValueError
from modules.images.grid import image_grid
from modules.images.infotext import with_fields
from modules.images.legend import LegendStyle, checked_margin, grid_with_legend
from modules.processing.comparison.series import Measured, Series, SeriesReport
from modules.processing.request.checking import check_names_of
from modules.processing.request.result import GeneratedImage, ImageRole
from modules.scripts.axes import AXES, Axis, join_words, split_words
from modules.scripts.job import Job, Processed
from modules.scripts.script import Script
from modules.scripts.script_callbacks import open_to

SEEDS = ("Seed", "Var. seed")
NOTHING = "Nothing"
REPORT_KEY = "Precision report"
"""Where a grid says which comparison page there is of its images; the page shows a link to it."""
Cell = tuple[int, int, int]
QUIET: dict[str, Any] = {"queue": False, "api_visibility": "private"}


@dataclass(frozen=True)
class Chosen:
    """An axis with its values; `text` is what was typed."""

    axis: Axis
    values: tuple[Any, ...]
    text: str

    @property
    def captions(self) -> list[str]:
        return [""] if self.axis.label == NOTHING else [self.axis.caption(value) for value in self.values]


class XyzPlot(Script):
    """The script."""

    def title(self) -> str:
        return "X/Y/Z plot"

    def ui(self, is_img2img: bool) -> list[Any]:
        import gradio as gr

        own = "script_img2img_xyz_plot" if is_img2img else "script_xyz_plot"
        labels = list(AXES)
        components: list[Any] = []
        fills: list[Any] = []
        for name, start in (("X", "Seed"), ("Y", NOTHING), ("Z", NOTHING)):
            prefix = f"{own}_{name.lower()}"
            with gr.Row(elem_classes=["fw-with-refresh"]):
                kind = gr.Dropdown(
                    labels,
                    value=start,
                    type="index",
                    label=f"{name} type",
                    elem_id=f"{prefix}_type",
                )
                values = gr.Textbox(
                    label=f"{name} values",
                    lines=1,
                    placeholder="1, 2, 3 or 1-9 (+2) or 0-1 [5]",
                    elem_id=f"{prefix}_values",
                )
                picked = gr.Dropdown(
                    [], multiselect=True, visible=False, label=f"{name} values", elem_id=f"{prefix}_values_dropdown"
                )
                fill = gr.Button("Fill", scale=0, min_width=60, elem_id=f"{own}_fill_{name.lower()}")
            fills.append(fill)
            components += [kind, values, picked]
        with gr.Row():
            components += [
                gr.Checkbox(True, label="Draw legend", elem_id=f"{own}_draw_legend"),
                gr.Checkbox(False, label="Include Sub Images", elem_id=f"{own}_include_lone_images"),
                gr.Checkbox(False, label="Include Sub Grids", elem_id=f"{own}_include_sub_grids"),
                gr.Checkbox(False, label="Keep -1 for seeds", elem_id=f"{own}_no_fixed_seeds"),
            ]
        as_text = gr.Checkbox(False, label="Use text inputs instead of dropdowns", elem_id=f"{own}_csv_mode")
        with gr.Row():
            components += [
                gr.Checkbox(False, label=f"Vary seeds for {name}", elem_id=f"{own}_vary_seeds_{name.lower()}")
                for name in "XYZ"
            ]
        components.append(gr.Slider(0, 500, value=0, step=2, label="Grid margins (px)", elem_id=f"{own}_margin"))
        swaps = gr.Row()
        with swaps:
            for first, second in ((0, 1), (1, 2), (0, 2)):
                button = gr.Button(f"Swap {'XYZ'[first]}/{'XYZ'[second]} axes", size="sm")
                pair = [components[3 * axis + part] for axis in (first, second) for part in (0, 1, 2)]
                button.click(self._swapped, inputs=[*pair, as_text], outputs=pair, **QUIET)
        for axis, fill in enumerate(fills):
            kind, values, picked = components[3 * axis : 3 * axis + 3]
            fill.click(self._filled, inputs=[kind, as_text], outputs=[values, picked], **QUIET)
            fields = [kind, values, picked, as_text]
            kind.input(self._switched, inputs=fields, outputs=[values, picked], **QUIET)
            as_text.input(self._switched, inputs=fields, outputs=[values, picked], **QUIET)
        self.infotext_fields = [
            (components[3 * axis + part], partial(self._pasted, name, part))
            for axis, name in enumerate("XYZ")
            for part in range(3)
        ]
        return [*components, as_text]

    def _pasted(self, name: str, part: int, fields: Mapping[str, Any]) -> Any:
        """Read, of an axis of the plot that an infotext has, its type (part 0) or one of the two fields of its
        values."""
        label = str(fields.get(f"{name} Type", NOTHING))
        if fields.get("Script") != self.title() or label not in AXES:
            return None
        label = AXES.canonical(label)
        number = list(AXES).index(label)
        return (label, *self._switched(number, str(fields.get(f"{name} Values", "")), [], False))[part]

    @open_to("user")
    def _filled(self, kind: int, as_text: bool) -> tuple[Any, Any]:
        """All choices of an axis, as text or picked."""
        import gradio as gr

        axis = AXES.get(list(AXES)[kind])
        choices = axis.choices(self.program) if axis.choices else []
        if choices and not as_text:
            return "", gr.update(value=choices, choices=choices)
        return join_words(choices), gr.update(value=[])

    @open_to("user")
    def _switched(self, kind: int, text: str, picked: list[str] | None, as_text: bool) -> tuple[Any, Any]:
        """The field that suits an axis: a list to pick from where it has choices, else a text."""
        import gradio as gr

        axis = AXES.get(list(AXES)[kind])
        words = [*split_words(text or ""), *(picked or [])]
        if axis.choices is None or as_text:
            return gr.update(value=join_words(words), visible=True), gr.update(value=[], visible=False)
        choices = axis.choices(self.program)
        kept = [word for word in words if word in choices]
        return gr.update(value="", visible=False), gr.update(choices=choices, value=kept, visible=True)

    @open_to("user")
    def _swapped(self, *fields: Any) -> tuple[Any, ...]:
        """Two axes in each other's place."""
        labels = list(AXES)
        first, second, as_text = fields[:3], fields[3:6], fields[6]
        return (
            labels[second[0]],
            *self._switched(second[0], second[1], second[2], as_text),
            labels[first[0]],
            *self._switched(first[0], first[1], first[2], as_text),
        )

    def _chosen(self, kind: Any, text: Any, picked: Any) -> Chosen:
        """An axis by its number or label, with its values from the text or the picked list."""
        labels = list(AXES)
        if isinstance(kind, str) and kind.isdigit():
            kind = int(kind)
        if isinstance(kind, int) and not 0 <= kind < len(labels):
            raise InvalidValueError(f"X/Y/Z plot: there is no axis number {kind}; allowed is 0 to {len(labels) - 1}.")
        axis = AXES.get(labels[kind] if isinstance(kind, int) else str(kind or NOTHING))
        if axis.label == NOTHING:
            return Chosen(axis, (None,), "")
        written = str(text or "") or join_words(picked or ())
        values = tuple(axis.values(written))
        if axis.check is not None:
            values = tuple(axis.check(value, self.program) for value in values)
        if not values:
            raise InvalidValueError(f"X/Y/Z plot: {axis.label} has no values. Type some, separated by commas.")
        return Chosen(axis, values, written)

    def expected_cells(self, p: Job, *args: Any) -> int:
        """How many images are coming, for the progress bar."""
        chosen = [self._chosen(*args[3 * axis : 3 * axis + 3]) for axis in range(3)]
        return len(chosen[0].values) * len(chosen[1].values) * len(chosen[2].values)

    def run(self, p: Job, *args: Any) -> Processed | None:
        x, y, z = (self._chosen(*args[3 * axis : 3 * axis + 3]) for axis in range(3))
        legend, lone, sub_grids, keep_random, vary_x, vary_y, vary_z, margin = args[9:17]
        margin_px, style = checked_margin(margin), LegendStyle.of(p.settings)
        if style.notice and legend:
            p.comment(style.notice)
        if not keep_random:
            x, y, z = (_fixed(p, axis) for axis in (x, y, z))
        jobs = _jobs(p, (x, y, z), (bool(vary_x), bool(vary_y), bool(vary_z)), bool(keep_random))
        for job in jobs.values():  # everything wrong is said before the first image
            check_names_of(job.to_request())
        made: dict[tuple[int, int, int], Processed] = {}
        measured: dict[tuple[int, int, int], Measured] = {}
        for cell in _order((x, y, z)):
            processed = jobs[cell].make()
            if processed.images:
                made[cell] = processed
                measured[cell] = self.program.measured(processed.result)
            if processed.interrupted:
                break
        if not made:
            return processed
        report, problem = self._report(p, (x, y, z), made, measured)
        fields = {"Script": self.title(), **({REPORT_KEY: report} if report else {})}
        whole = _assembled(fields, p, (x, y, z), made, bool(legend), bool(lone), bool(sub_grids), margin_px, style)
        notices = (*whole.result.notices, *([problem] if problem else []))
        whole.result = replace(whole.result, interrupted=processed.interrupted, notices=notices)
        return whole

    def _report(
        self,
        p: Job,
        axes: tuple[Chosen, ...],
        made: Mapping[Cell, Processed],
        measured: Mapping[Cell, Measured],
    ) -> tuple[str, str]:
        """The name of the comparison page of a grid over precisions, and why there is none; both may be empty."""
        found = series_of(axes, made, measured, p.prompt)
        if found is None:
            return "", ""
        series, captions = found
        info = next(iter(made.values())).result.info
        made_with = (
            f"{info.steps} steps of {info.sampler}, {info.width}×{info.height} pixels, CFG scale {info.cfg_scale:g}, "
            f"seed {info.seeds[0] if info.seeds else p.seed}; what differs is said with the images"
        )
        try:
            return self.program.report(SeriesReport(series, captions, info.checkpoint_name, made_with)), ""
        except FeatherweightError as error:  # the grid is worth more than its report
            return "", f"The comparison of precisions could not be written: {error}"


def series_of(
    axes: tuple[Chosen, ...], made: Mapping[Cell, Processed], measured: Mapping[Cell, Measured], prompt: str
) -> tuple[list[Series], list[str]] | None:
    """The cells by precision: a series for each combination of values of the axes that compare precisions, with an
    image for each of the others', and what is said of these. Only images that there are in every series; None without
    such an axis, and where less than two series have an image in common."""
    is_precision = [axis.axis.compares_precision for axis in axes]
    rows: dict[tuple[int, ...], dict[tuple[int, ...], Cell]] = {}
    for cell in sorted(made):
        row = tuple(number for number, on in zip(cell, is_precision, strict=True) if on)
        rows.setdefault(row, {})[tuple(number for number, on in zip(cell, is_precision, strict=True) if not on)] = cell
    common = [other for other in next(iter(rows.values())) if all(other in cells for cells in rows.values())]
    if len(rows) < 2 or not common:
        return None

    def caption(cell: Cell, precision: bool) -> str:
        parts = zip(axes, cell, is_precision, strict=True)
        return ", ".join(
            axis.captions[number] for axis, number, on in parts if on is precision and axis.captions[number]
        )

    series = [Series(caption(next(iter(cells.values())), True)) for cells in rows.values()]
    captions: list[str] = []
    for other in common:
        cells = [found[other] for found in rows.values()]
        samples = [[one.image for one in made[cell].generated if one.role is ImageRole.SAMPLE] for cell in cells]
        for number, images in enumerate(zip(*samples, strict=False), start=1):
            said = caption(cells[0], False) or prompt
            captions.append(said if len(samples[0]) == 1 else f"{said}, image {number}")
            for one, image in zip(series, images, strict=True):
                one.images.append(image)
        for one, cell in zip(series, cells, strict=True):
            one.measured.append(measured[cell])
    return (series, captions) if captions else None


def _fixed(p: Job, chosen: Chosen) -> Chosen:
    """Seeds of -1 become numbers, so that each stands for one image in all rows."""
    if chosen.axis.label not in SEEDS:
        return chosen
    return replace(chosen, values=tuple(map(p.drawn_seed, chosen.values)))


def _jobs(
    p: Job, axes: tuple[Chosen, ...], vary: tuple[bool, ...], keep_random: bool
) -> dict[tuple[int, int, int], Job]:
    """A job for every cell; wrong values raise here."""
    jobs: dict[Cell, Job] = {}
    x, y, z = (range(len(axis.values)) for axis in axes)
    stride = len(x) if vary[0] else 1
    strides = (1, stride, stride * (len(y) if vary[1] else 1))
    for cell in itertools.product(x, y, z):
        job = p.replace()
        if keep_random and jobs:  # the first has the recorded seeds
            job.seed, job.subseed = p.requested_seed, p.requested_subseed
        for axis, number in zip(axes, cell, strict=True):
            axis.axis.apply(job, axis.values[number], axis.values)
        job.fix_seeds()
        job.seed += sum(number * stride for number, stride, on in zip(cell, strides, vary, strict=True) if on)
        job.do_not_save_grid = True
        jobs[cell] = job
    return jobs


def _order(axes: tuple[Chosen, ...]) -> list[tuple[int, int, int]]:
    """All cells, the costliest axis changing least often."""
    by_cost = sorted(range(3), key=lambda number: (-axes[number].axis.cost, -number))
    counts = [range(len(axes[number].values)) for number in by_cost]
    cells = []
    for numbers in itertools.product(*counts):
        place = dict(zip(by_cost, numbers, strict=True))
        cells.append((place[0], place[1], place[2]))
    return cells


def _assembled(
    facts: Mapping[str, object],
    p: Job,
    axes: tuple[Chosen, ...],
    made: dict[tuple[int, int, int], Processed],
    legend: bool,
    lone: bool,
    sub_grids: bool,
    margin: int,
    style: LegendStyle,
) -> Processed:
    """The grid, the grids it is made of, and the images, in this order. `facts` begin what the grids record."""
    x, y, z = axes
    first = next(iter(made.values()))
    fields: dict[str, object] = dict(facts)
    for name, axis in zip("XYZ", axes, strict=True):
        if axis.axis.label != NOTHING:
            fields[f"{name} Type"] = axis.axis.label
            fields[f"{name} Values"] = axis.text
            if axis.axis.label in SEEDS:
                fields[f"Fixed {name} Values"] = ", ".join(map(str, axis.values))
    grids: list[Image.Image] = []
    names: list[str] = []  # of the grids
    for iz in range(len(z.values)):
        rows = [[_image_of(made.get((ix, iy, iz))) for ix in range(len(x.values))] for iy in range(len(y.values))]
        if any(cell is not None for row in rows for cell in row):
            columns = x.captions if legend else [""] * len(x.values)
            labels = y.captions if legend else [""] * len(y.values)
            grids.append(grid_with_legend(rows, columns, labels, margin, style))
            names.append(z.captions[iz] if legend and z.axis.label != NOTHING else "")
    start = first.generated[0]
    text = with_fields(start.infotext, fields)

    def as_grid(image: Image.Image) -> GeneratedImage:
        return GeneratedImage(image, text, start.seed, start.subseed, role=ImageRole.GRID)

    whole = grid_with_legend([grids], names, [""], style=style)
    images = [as_grid(whole)]
    if sub_grids and len(grids) > 1:
        images += [as_grid(grid) for grid in grids]
    samples = [image for processed in made.values() for image in processed.generated]
    result = replace(
        first.result,
        notices=tuple(dict.fromkeys(note for processed in made.values() for note in processed.result.notices)),
    )
    processed = Processed(result)
    processed.generated = images + (samples if lone else [])
    p.save_grids(processed, len(images))
    return processed


def _image_of(processed: Processed | None) -> Image.Image | None:
    """A cell's image; of a batch, all of it."""
    if processed is None or not processed.images:
        return None
    images = [image.image for image in processed.generated if image.role is ImageRole.SAMPLE]
    return images[0] if len(images) == 1 else image_grid(images, max(1, round(len(images) ** 0.5)))
