"""Hypertile: self-attention inside of tiles of the image, which large images need far less work for.

Attention over T tokens compares T * T pairs; in n tiles it is a n-th of that. The tiles of a layer change from step to
step (swap size), so that no border lasts: they are drawn by one generator per job, seeded with its first seed, layer
after layer, and again from that seed in the second pass. After HyperTile by tfernd (github.com/tfernd/HyperTile, 2023);
settings, draws, names in infotexts and axes are those of the reference UI 1.10.
"""

from __future__ import annotations

import math
import random
import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from modules import scripts
from modules.errors import InvalidValueError
from modules.memory.hook_chain import HookHandle, HookOrder, register_hook
from modules.processing.request.model_use import ModelUse
from modules.scripts import extra_networks, script_callbacks
from modules.scripts.axes import Axis, add_axis
from modules.scripts.job import Job
from modules.scripts.settings import ExtensionSettings
from modules.settings.group import SettingsGroup, flag, whole
from modules.settings.setting import Section
from modules.settings.values import Settings
from modules.system.texts import page_text

if TYPE_CHECKING:  # the server reads scripts, and does without PyTorch
    from torch import Tensor, nn

TITLE = "Hypertile"
BLOCK = "BasicTransformerBlock"
"""Blocks whose `attn1` is self-attention over the tokens of the image."""
MIN_TILE_PX = 128
LATENT_PX = 8
DEPTH_HINT = "0: only layers at full resolution; 3: also those at an eighth of it."


class HypertileSettings(SettingsGroup):
    """The keys of the reference UI."""

    section = Section(id="hypertile", title=TITLE, category="Stable Diffusion")

    hypertile_enable_unet = flag(
        "Enable Hypertile U-Net",
        False,
        infotext="Hypertile U-Net",
        hint="Large images are made faster and change a little: the UNet's self-attention works in tiles.",
    )
    hypertile_enable_unet_secondpass = flag(
        "Enable Hypertile U-Net for hires fix second pass", False, infotext="Hypertile U-Net second pass"
    )
    hypertile_max_depth_unet = whole(
        "Hypertile U-Net max depth",
        3,
        minimum=0,
        maximum=3,
        step=1,
        infotext="Hypertile U-Net max depth",
        hint=DEPTH_HINT,
    )
    hypertile_max_tile_unet = whole(
        "Hypertile U-Net max tile size",
        256,
        minimum=0,
        maximum=512,
        step=16,
        infotext="Hypertile U-Net max tile size",
        hint="In pixels of the image: the least side of a tile; below 128 counts as 128.",
    )
    hypertile_swap_size_unet = whole(
        "Hypertile U-Net swap size",
        3,
        minimum=0,
        maximum=64,
        step=1,
        infotext="Hypertile U-Net swap size",
        hint="The number of tile sizes between which a layer changes.",
    )
    hypertile_enable_vae = flag("Enable Hypertile VAE", False, infotext="Hypertile VAE")
    hypertile_max_depth_vae = whole(
        "Hypertile VAE max depth",
        3,
        minimum=0,
        maximum=3,
        step=1,
        infotext="Hypertile VAE max depth",
        hint="No effect: a VAE attends at one resolution only.",
    )
    hypertile_max_tile_vae = whole(
        "Hypertile VAE max tile size", 128, minimum=0, maximum=512, step=16, infotext="Hypertile VAE max tile size"
    )
    hypertile_swap_size_vae = whole(
        "Hypertile VAE swap size", 3, minimum=0, maximum=64, step=1, infotext="Hypertile VAE swap size"
    )


@dataclass(frozen=True)
class Tiling:
    """How a component is tiled. `max_depth`: down to which depth of its layers."""

    max_depth: int
    tile_px: int
    swap_size: int

    def counts(
        self, size: tuple[int, int], depth: int, image_px: tuple[int, int], draw: random.Random
    ) -> tuple[int, int]:
        """How many tiles there are down and across a feature map of `size` (height, width) in a layer of this depth.

        A tile is at least as large in the map as `tile_px` is in the latents, twice that one level deeper, and so on;
        it is no larger than the largest power of two that divides both sides of the image, `image_px`.
        """
        even_px = math.gcd(*image_px) & -math.gcd(*image_px)
        least = (max(MIN_TILE_PX, min(self.tile_px, even_px)) // LATENT_PX) << depth
        down, across = (drawn(tile_counts(side, least, self.swap_size), draw) for side in size)
        return down, across


def tile_counts(side: int, least: int, options: int) -> list[int]:
    """Into how many equal parts of at least `least` a side may be cut, the most first, no more than `options` (at least
    one): [1] where it is smaller."""
    found = [side // length for length in range(min(least, side), side + 1) if side % length == 0]
    return found[: max(1, options)]


def drawn(options: Sequence[int], draw: random.Random) -> int:
    """One of the options; the generator is asked even where there is only one."""
    return options[draw.randint(0, len(options) - 1)]


@dataclass(frozen=True)
class LayerPlace:
    """Where in a UNet a layer attends: after how many halvings of the latents, and at which depth of tiling."""

    halvings: int
    depth: int

    def size(self, latent_size: tuple[int, int]) -> tuple[int, int]:
        """Height and width of its feature map."""
        height, width = latent_size
        for _ in range(self.halvings):
            height, width = -(-height // 2), -(-width // 2)
        return height, width


@dataclass
class PassState:
    """The pass that runs now, what its denoiser was given last, and the generator of tiles.

    A model call whose answer is known from an earlier try does not reach the UNet; `next_call` tells how many of
    them have to be made up for with their draws, so that the image is the same.
    """

    is_hires: bool = False
    latent_size: tuple[int, int] = (0, 0)
    draw: random.Random = field(default_factory=random.Random)
    first: Tiling | None = None  # None: not in the first pass
    second: Tiling | None = None
    places: list[LayerPlace] = field(default_factory=list)  # of the UNet's layers, in the order of their calls
    call: int = 0
    next_call: int = 0

    @property
    def tiling(self) -> Tiling | None:
        """That of the pass that runs now."""
        return self.second if self.is_hires else self.first

    def begin_pass(self, is_hires: bool) -> None:
        """A pass begins."""
        self.is_hires, self.call, self.next_call = is_hires, 0, 0

    def counts(self, place: LayerPlace, tiling: Tiling) -> tuple[int, int]:
        """The tiles of the layer that is called now, see `Tiling.counts`."""
        image_px = (self.latent_size[0] * LATENT_PX, self.latent_size[1] * LATENT_PX)
        return tiling.counts(place.size(self.latent_size), place.depth, image_px, self.draw)

    def watch(self, module: nn.Module, inner: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Around the UNet."""
        sample: Tensor = args[0] if args else kwargs["sample"]
        self.latent_size = (sample.shape[-2], sample.shape[-1])
        tiling = self.tiling
        for _ in range(self.next_call, self.call if tiling else 0):
            for place in self.places:
                if tiling is not None and place.depth <= tiling.max_depth:
                    self.counts(place, tiling)
        self.next_call = max(self.next_call, self.call + 1)
        return inner(*args, **kwargs)


@dataclass(frozen=True)
class TokenTiles:
    """Self-attention over tokens [B,T,C] of the image, inside of tiles. Another number of tokens than the place has, as
    when tokens were merged, is attended to as a whole."""

    state: PassState
    place: LayerPlace

    def __call__(self, module: nn.Module, inner: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        tiling = self.state.tiling
        tokens: Tensor = args[0] if args else kwargs["hidden_states"]
        context = args[1] if len(args) > 1 else kwargs.get("encoder_hidden_states")
        if tiling is None or context is not None or self.place.depth > tiling.max_depth:
            return inner(*args, **kwargs)
        height, width = self.place.size(self.state.latent_size)
        down, across = self.state.counts(self.place, tiling)
        if down * across == 1 or tokens.shape[1] != height * width:
            return inner(*args, **kwargs)
        batch, _, channels = tokens.shape
        rest = args[1:] if args else ()
        kwargs.pop("hidden_states", None)
        grid = tokens.reshape(batch, down, height // down, across, width // across, channels).transpose(2, 3)
        made = inner(grid.reshape(batch * down * across, -1, channels), *rest, **kwargs)
        back = made.reshape(batch, down, across, height // down, width // across, made.shape[-1]).transpose(2, 3)
        return back.reshape(batch, height * width, -1)


@dataclass(frozen=True)
class MapTiles:
    """Self-attention over feature maps [B,C,h,w], inside of tiles; those of the VAE all have the latent's size."""

    tiling: Tiling
    state: PassState

    def __call__(self, module: nn.Module, inner: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        x: Tensor = args[0] if args else kwargs["hidden_states"]
        if x.ndim != 4:
            return inner(*args, **kwargs)
        batch, channels, height, width = x.shape
        image_px = (height * LATENT_PX, width * LATENT_PX)
        down, across = self.tiling.counts((height, width), 0, image_px, self.state.draw)
        if down * across == 1:
            return inner(*args, **kwargs)
        rest = args[1:] if args else ()
        kwargs.pop("hidden_states", None)
        grid = x.reshape(batch, channels, down, height // down, across, width // across).permute(0, 2, 4, 1, 3, 5)
        made = inner(grid.reshape(-1, channels, height // down, width // across).contiguous(), *rest, **kwargs)
        back = made.reshape(batch, down, across, -1, height // down, width // across).permute(0, 3, 1, 4, 2, 5)
        return back.reshape(batch, -1, height, width)


@dataclass
class ModelHooks(extra_networks.ExtraNetwork):
    """Has the tiles on every model while it takes part in a job. It is no kind of tags, but called at their moments."""

    name: str = "hypertile"
    aliases: tuple[str, ...] = ()
    state: PassState = field(default_factory=PassState)
    handles: list[HookHandle] = field(default_factory=list)

    def activate(self, job: extra_networks.AdapterJob, tags: Sequence[extra_networks.PromptTag]) -> None:
        """Register the hooks that the settings ask for."""
        self.deactivate(job)
        if tags:
            raise InvalidValueError("Hypertile is switched on in Settings > Hypertile, not by <hypertile:...>.")
        settings = HypertileSettings(job.settings)
        if settings.hypertile_enable_unet or settings.hypertile_enable_unet_secondpass:
            self._tile_unet(job, settings)
        if settings.hypertile_enable_vae:
            self._tile_vae(job, settings)

    def deactivate(self, job: extra_networks.AdapterJob) -> None:
        """Take them off."""
        for handle in self.handles:
            handle.remove()
        self.handles.clear()

    def _tile_unet(self, job: extra_networks.AdapterJob, settings: HypertileSettings) -> None:
        unet = job.model.unet
        blocks = {name: module for name, module in unet.named_modules() if _is_named(module, BLOCK)}
        if not blocks:
            job.notices.append(
                page_text(f"Hypertile has no effect on {job.model.family.label}: its denoiser has no layers for it.")
            )
            return
        tiling = Tiling(
            settings.hypertile_max_depth_unet, settings.hypertile_max_tile_unet, settings.hypertile_swap_size_unet
        )
        places, state = places_of(blocks), self.state
        state.first, state.second = tiling if settings.hypertile_enable_unet else None, tiling
        state.places = [places[name] for name in sorted(blocks, key=_in_order_of_calls)]
        self.handles.append(register_hook(unet, state.watch, HookOrder.OBSERVE))
        for name, block in blocks.items():
            tiles = TokenTiles(state, places[name])
            self.handles.append(register_hook(block.get_submodule("attn1"), tiles, HookOrder.PART))

    def _tile_vae(self, job: extra_networks.AdapterJob, settings: HypertileSettings) -> None:
        tiling = Tiling(
            settings.hypertile_max_depth_vae, settings.hypertile_max_tile_vae, settings.hypertile_swap_size_vae
        )
        for layer in job.model.vae.decoder.modules():
            if _is_named(layer, "Attention"):
                self.handles.append(register_hook(layer, MapTiles(tiling, self.state), HookOrder.PART))


PARTS = ("down_blocks", "mid_block", "up_blocks")
"""Of a UNet, in the order of their calls."""


def places_of(names: Collection[str]) -> dict[str, LayerPlace]:
    """Where each layer of a UNet is: depth 0 in the blocks of the highest resolution that attend at all, one more for
    each halving after that, and one more than all others in the middle."""
    down = [_block(name) for name in names if name.startswith("down_blocks.")]
    up = [_block(name) for name in names if name.startswith("up_blocks.")]
    first, last, last_up = min(down, default=0), max(down, default=0), max(up, default=0)

    def place(name: str) -> LayerPlace:
        if name.startswith("down_blocks."):
            return LayerPlace(_block(name), _block(name) - first)
        if name.startswith("up_blocks."):
            return LayerPlace(last_up - _block(name) + first, last_up - _block(name))
        return LayerPlace(max(last, last_up + first), last - first + 1)

    return {name: place(name) for name in names}


def _block(name: str) -> int:
    """The number of the block that a layer is in; 0 in the middle one, which has none."""
    number = re.search(r"blocks\.(\d+)\.", name)
    return int(number[1]) if number else 0


def _in_order_of_calls(name: str) -> tuple[int, ...]:
    part = next(number for number, part in enumerate(PARTS) if name.startswith(part))
    return (part, *(int(word) for word in name.split(".") if word.isdigit()))


HOOKS = ModelHooks()


class Hypertile(scripts.Script):
    """Says which pass runs, and writes into images what was on."""

    def title(self) -> str:
        return TITLE

    def show(self, is_img2img: bool) -> object:
        return scripts.AlwaysVisible

    def process(self, p: Job, *args: Any) -> None:
        HOOKS.state.draw.seed(p.all_seeds[0])
        p.extra_generation_params |= recorded(p.settings, p.enable_hr)

    def before_hr(self, p: Job, *args: Any) -> None:
        values = HypertileSettings(p.settings)
        if values.hypertile_enable_unet or values.hypertile_enable_unet_secondpass:
            HOOKS.state.draw.seed(p.all_seeds[0])

    def process_before_every_sampling(self, p: Job, *args: Any, **facts: Any) -> None:
        HOOKS.state.begin_pass(p.is_hr_pass)

    def on_model(self, p: Job, use: ModelUse, *args: Any) -> None:
        def count(inputs: Any) -> None:
            HOOKS.state.call = inputs.step

        use.before_call.append(count)


def recorded(settings: Settings, has_second_pass: bool) -> dict[str, Any]:
    """Return what an image says, with all that it takes to make it again."""
    values = HypertileSettings(settings)
    rows: list[Any] = []
    second = values.hypertile_enable_unet_secondpass and has_second_pass
    if values.hypertile_enable_unet:
        rows.append(HypertileSettings.hypertile_enable_unet)
    if second:
        rows.append(HypertileSettings.hypertile_enable_unet_secondpass)
    if rows:
        rows += [
            HypertileSettings.hypertile_max_depth_unet,
            HypertileSettings.hypertile_max_tile_unet,
            HypertileSettings.hypertile_swap_size_unet,
        ]
    if values.hypertile_enable_vae:
        rows += [
            HypertileSettings.hypertile_enable_vae,
            HypertileSettings.hypertile_max_depth_vae,
            HypertileSettings.hypertile_max_tile_vae,
            HypertileSettings.hypertile_swap_size_vae,
        ]
    return {str(row.setting.infotext): row.as_set(settings) for row in rows}


def _is_named(module: nn.Module, name: str) -> bool:
    return any(each.__name__ == name for each in type(module).__mro__)


def _add_settings(settings: ExtensionSettings) -> None:
    settings.add(HypertileSettings)
    settings.section("hypertile").kept({"hypertile_explanation": ""})


def _switch(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise InvalidValueError(f"{text!r} is neither True nor False.")
    return text.lower() == "true"


def _axis(label: str, row: Any) -> Axis:
    """An axis over a setting."""

    def apply(p: Job, value: Any, values: Sequence[Any]) -> None:
        p.override_settings[row.key] = value

    if isinstance(row.setting.default, bool):
        return Axis(f"[Hypertile] {label}", _switch, apply, choices=lambda program: ["True", "False"])
    return Axis(f"[Hypertile] {label}", lambda text: int(float(text)), apply, is_number=True)


for _label, _row in (
    ("Unet First pass Enabled", HypertileSettings.hypertile_enable_unet),
    ("Unet Second pass Enabled", HypertileSettings.hypertile_enable_unet_secondpass),
    ("Unet Max Depth", HypertileSettings.hypertile_max_depth_unet),
    ("Unet Max Tile Size", HypertileSettings.hypertile_max_tile_unet),
    ("Unet Swap Size", HypertileSettings.hypertile_swap_size_unet),
    ("VAE Enabled", HypertileSettings.hypertile_enable_vae),
    ("VAE Max Depth", HypertileSettings.hypertile_max_depth_vae),
    ("VAE Max Tile Size", HypertileSettings.hypertile_max_tile_vae),
    ("VAE Swap Size", HypertileSettings.hypertile_swap_size_vae),
):
    add_axis(_axis(_label, _row))
extra_networks.register_extra_network(HOOKS)
script_callbacks.on_ui_settings(_add_settings)
