"""Images of the history made once more: in another precision, or with any other parameter or setting; and in which
parameters two images differ."""

import asyncio
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from fastapi import APIRouter, Request
from pydantic import Field

from modules.api.access.auth import identity_of
from modules.api.generation.requests import request_from
from modules.api.history.history_access import NO_IMAGE, HistoryAccess
from modules.api.schema.documentation import documented
from modules.api.schema.name_lists import NAMES
from modules.api.schema.reply_models import DifferingValue, ParameterItem, TaskIdReply, TaskIdsReply
from modules.api.schema.schemas import Tolerant, Txt2ImgBody
from modules.errors import FeatherweightError, InvalidValueError, UnknownNameError
from modules.history.difference import differing_values
from modules.history.store import HistoryEntry
from modules.images.infotext import parse_infotext
from modules.jobs.editing import api_values, with_api_values
from modules.jobs.ownership import claimed
from modules.jobs.repeats import UNREADABLE
from modules.memory.formats.catalog import chosen_formats
from modules.processing.request.parameters import Choices, Parameter
from modules.processing.request.pasting import references_shown
from modules.processing.request.request import HIRES_ROWS, REQUEST_ROWS, GenerationRequest, request_from_json
from modules.processing.request.source_images import IMAGE_ROWS, FromImage
from modules.services import Services
from modules.settings.definitions import SettingType, visible_sections
from modules.settings.setting import AskedChoices
from modules.settings.values import as_json

PRECISIONS = (*chosen_formats(), "fp16")
MAX_CHANGES = 50  # jobs of one call
OVERRIDES = "override_settings"
LATER_NAMES = ("styles",)  # texts that are in the prompt already


class AgainBody(Tolerant):
    """`precision`: fp16 for full precision, or a storage format."""

    id: int = Field(examples=[1767225600000000])
    precision: str = Field(examples=["fp8_e4m3fn_row"])


class AgainWithBody(Tolerant):
    """A job for each of `changes`: parameters by the names of POST /sdapi/v1/txt2img, `checkpoint`, and settings in
    `override_settings`. What is left out stays, the seed too."""

    id: int = Field(examples=[1767225600000000])
    changes: list[dict[str, Any]] = Field(
        min_length=1, max_length=MAX_CHANGES, examples=[[{"steps": 30}, {"steps": 40}]]
    )


def again_routes(services: Services) -> APIRouter:
    """POST /featherweight/v1/history/again, again-with and what they need to be asked."""
    routes = APIRouter(prefix="/featherweight/v1/history", tags=["history"])
    access = HistoryAccess(services.history.history)

    @routes.post("/again", **documented(errors={404: NO_IMAGE, 422: "There is no precision 'fp9'."}))
    async def again(body: AgainBody, request: Request) -> TaskIdReply:
        """Make an image once more, with its seed and in another precision. Answers with the task id; compare the two
        with `difference` when it is done."""
        entry = access.entry(body.id, request)
        wanted = await asyncio.to_thread(in_precision, entry, body.precision, services)
        wanted = claimed(wanted, identity_of(request), services.settings.current)
        return TaskIdReply(task_id=(await asyncio.to_thread(services.queue.submit, wanted)).task_id)

    @routes.post("/again-with", **documented(errors={404: NO_IMAGE, 422: "steps is 0; allowed is 1 to 1000."}))
    async def again_with(body: AgainWithBody, request: Request) -> TaskIdsReply:
        """Make an image once more for each of some changes, otherwise as it was. Nothing is put in line where one of
        them cannot be."""
        entry, identity = access.entry(body.id, request), identity_of(request)
        for changes in body.changes:
            overrides = changes.get(OVERRIDES, {})
            if not isinstance(overrides, dict):
                raise InvalidValueError(f"{OVERRIDES} is {overrides!r}; it takes an object of settings by their keys.")

        def submitted() -> list[str]:
            found = request_of_image(entry, services)
            wanted = [changed(found, changes, services) for changes in body.changes]
            claims = [claimed(one, identity, services.settings.current) for one in wanted]
            return [services.queue.submit(one).task_id for one in claims]

        return TaskIdsReply(task_ids=await asyncio.to_thread(submitted))

    @routes.get("/parameters", **documented(errors={404: NO_IMAGE}))
    async def parameters(id: int, request: Request) -> list[ParameterItem]:
        """List what `again-with` takes for an image: its parameters and the settings that images depend on, with the
        values that it was made with."""
        entry = access.entry(id, request)
        found = await asyncio.to_thread(request_of_image, entry, services)
        return [*parameter_items(found, services), *setting_items(found, services)]

    @routes.get("/differing", **documented(errors={404: NO_IMAGE}))
    def differing(first: int, second: int, request: Request) -> list[DifferingValue]:
        """The prompts, parameters and settings in which two images differ, from their infotexts; null where one of them
        says nothing."""
        texts = [access.entry(entry_id, request).infotext for entry_id in (first, second)]
        return [DifferingValue(key=key, first=one, second=other) for key, one, other in differing_values(*texts)]

    return routes


def in_precision(entry: HistoryEntry, precision: str, services: Services) -> GenerationRequest:
    """The request that makes an image once more, in another precision. Raises as `request_of_image` does."""
    if precision not in PRECISIONS:
        raise UnknownNameError.of("precision", precision, PRECISIONS)
    changes: dict[str, object] = {"fp8_storage": "Disable"}
    if precision != "fp16":
        changes = {"fp8_storage": "Enable", "fp8_format": precision}
    return changed(request_of_image(entry, services), {OVERRIDES: changes}, services)


def changed(request: GenerationRequest, changes: dict[str, Any], services: Services) -> GenerationRequest:
    """The request with other parameters and settings. Raises `UnknownNameError` and `InvalidValueError`."""
    parameters = {name: value for name, value in changes.items() if name != OVERRIDES}
    overrides = changes.get(OVERRIDES, {})
    if overrides:
        request = replace(
            request,
            settings=request.settings.with_changes(overrides),
            override_settings={**request.override_settings, **overrides},
        )
    upscalers = services.engine.upscalers.catalogue.names
    return with_api_values(request, parameters, services.catalogue, upscalers) if parameters else request


def request_of_image(entry: HistoryEntry, services: Services) -> GenerationRequest:
    """The request that makes an image once more: from the record of its job while there is one, else from its
    infotext. Raises `InvalidValueError` where neither says enough."""
    recorded = _recorded(entry, services)
    if recorded is not None:
        return recorded
    if not entry.infotext:
        raise InvalidValueError(f"{entry.path.name} does not say how it was made, so it cannot be made again.")
    if "Denoising strength:" in entry.infotext and "Hires up" not in entry.infotext:
        raise InvalidValueError(
            f"{entry.path.name} was made from another image, which is no longer recorded. Send it to img2img instead."
        )
    if references_shown(parse_infotext(entry.infotext)):
        raise InvalidValueError(
            f"{entry.path.name} was made with reference images, which are no longer recorded. Send it to txt2img, and "
            "add them there."
        )
    return request_from(Txt2ImgBody(infotext=entry.infotext, save_images=True), services)


def parameter_items(request: GenerationRequest, services: Services) -> list[ParameterItem]:
    """The parameters of a request that can be changed, in the order of the tables."""
    values = api_values(request)
    groups: list[tuple[str, Iterable[Parameter]]] = [("Parameters", REQUEST_ROWS)]
    if isinstance(request.start, FromImage):
        groups.append(("Image", IMAGE_ROWS))
    elif request.hires is not None:
        groups.append(("Hires. fix", HIRES_ROWS))
    titles: list[tuple[str | int | None, str]] = [(title, title) for title in NAMES[Choices.CHECKPOINTS](services)]
    wanted = services.catalogue.find(request.checkpoint) if request.checkpoint else None
    items = [
        ParameterItem(
            name="checkpoint",
            label="Stable Diffusion checkpoint",
            group="Parameters",
            type="choice",
            value=wanted.title if wanted else None,
            choices=titles,
        )
    ]
    for group, rows in groups:
        items += [_item(row, group, values[row.api], services) for row in rows if _can_change(row)]
    return items


def setting_items(request: GenerationRequest, services: Services) -> list[ParameterItem]:
    """The settings that images depend on and record."""
    found = []
    for setting in (setting for settings in visible_sections().values() for setting in settings):
        if not (setting.affects_image and setting.infotext) or setting.type in (SettingType.LIST, SettingType.COLOR):
            continue
        if isinstance(setting.choices, str):
            if setting.choices != "vaes":
                continue
            choices = services.engine.vaes.choices()
        else:
            choices = list(
                setting.choices.ask() if isinstance(setting.choices, AskedChoices) else setting.choices or ()
            )
        number = setting.type in (SettingType.INT, SettingType.FLOAT)
        found.append(
            ParameterItem(
                name=setting.key,
                label=setting.label,
                group="Settings",
                type="flag" if setting.type is SettingType.BOOL else "number" if number else _text_or_choice(choices),
                value=as_json(request.settings[setting.key]),
                choices=[(one, one) for one in choices],
                minimum=setting.minimum,
                maximum=setting.maximum,
            )
        )
    return found


def _can_change(row: Parameter) -> bool:
    return bool(row.api) and row.control is not None and row.api not in LATER_NAMES


def _item(row: Parameter, group: str, value: Any, services: Services) -> ParameterItem:
    choices: list[tuple[str | int | None, str]] = []
    if row.choices is not None:
        choices = [(name, name) for name in NAMES[row.choices](services)]
        if row.is_optional:
            choices.insert(0, (None, row.nothing))
    elif row.words and row.type is not bool:
        choices = [(number, word) for number, word in enumerate(row.words)]
    type_ = "flag" if row.type is bool else "choice" if choices else "number" if row.type in (int, float) else "text"
    label = row.control.label if row.control else row.message_name
    return ParameterItem(
        name=row.api,
        label=label,
        group=group,
        type=type_,
        value=value,
        choices=choices,
        minimum=row.low,
        maximum=row.high,
    )


def _text_or_choice(choices: list[str]) -> str:
    return "choice" if choices else "text"


def _recorded(entry: HistoryEntry, services: Services) -> GenerationRequest | None:
    """The request of this one image, from the record of its job; None where that is missing."""
    record = services.queue.store.get(entry.task_id) if entry.task_id else None
    if record is None:
        return None
    images = (record.outcome or {}).get("images", [])
    made = next((image for image in images if isinstance(image, dict) and image.get("path") == str(entry.path)), None)
    if made is None or made.get("role", made.get("kind")) != "sample":  # "kind": older records
        return None
    try:
        request = request_from_json(record.request, services.queue.store.inputs.image_of)
        if request.script is not None:
            return None
        seed, subseed = int(made["seed"]), int(made["subseed"])
        return replace(request, batch_size=1, batch_count=1, save_images=True, seed=seed, subseed=subseed)
    except (*UNREADABLE, FeatherweightError):
        return None
