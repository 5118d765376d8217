"""A model in memory: its components, its latent format, and the three things processing asks of it."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from modules.errors import CheckpointError, InvalidValueError
from modules.memory.block_decoding import DecodedWeights
from modules.memory.graphs import DenoiserGraphs
from modules.memory.layer import shape_of, stored_state
from modules.memory.recovery import Recovery
from modules.memory.spill import StepTimes
from modules.memory.storage import stored_bytes
from modules.memory.streaming.streaming import StreamHandle
from modules.models.autoencoders.autoencoder import Autoencoder
from modules.models.autoencoders.files import VaeInfo
from modules.models.autoencoders.running import VaeRunner
from modules.models.autoencoders.tiny_vae import TinyHalf, TinyVae
from modules.models.families.architecture import LdmArchitecture
from modules.models.families.denoiser_context import REFERENCE, DenoiserContext, Extra, ModelInputs
from modules.models.families.family import GuidanceType, ModelFamily
from modules.models.files.catalogue import CheckpointInfo
from modules.models.loading.matching import Assignment
from modules.models.loading.precision import ComputeMode, PrecisionPlan
from modules.models.loading.unet_running import UnetRunner
from modules.models.names.component import Component
from modules.models.opening.checkpoint import open_checkpoint
from modules.system.devices import autocast, recorder_of


@dataclass
class LoadedModel:
    """The components of one checkpoint, in eval mode, without gradients, stored and computed by `plan`.

    Dtypes come from the plan and are never read from a parameter: storage and computation may differ. `saturated`
    counts, by the tensor's name in the file, weights that were beyond the range of their format.
    """

    info: CheckpointInfo
    family: ModelFamily
    architecture: LdmArchitecture
    text_encoders: Mapping[str, Any]  # by component: "text_encoder", "text_encoder_2" ...
    unet: Any  # or the transformer in its place
    vae: Any  # the module of `architecture.autoencoder`
    plan: PrecisionPlan
    saturated: dict[str, int] = field(default_factory=dict)
    stored_note: str = ""  # what of the file is kept in few bits, and what is re-encoded, in one line
    components: tuple[Component, ...] = ()
    sources: dict[tuple[str, str], Assignment] = field(default_factory=dict)  # by component and our key
    switch_seconds: float = 0.0  # until it was ready the last time
    streaming: StreamHandle | None = None  # None: all weights lie on the device
    part_files: tuple[Path, ...] = ()  # files beside the checkpoint's own that parts came from, chosen or found
    vae_info: VaeInfo | None = None  # the file that the VAE came from; None: the checkpoint
    tiny_vae: TinyVae = field(default_factory=TinyVae)  # what a job uses instead of the VAE
    adapters: Any = None  # what applies adapters to this model (`processing.engine` puts it here)
    hypernetworks: Any = None
    token: object = field(default_factory=object)  # another one for each model that was loaded
    shown_as: str = REFERENCE  # the name in `ModelInputs.extra` that a job's references have
    step_bytes: int = 0  # the most that a step was seen to take on a GPU besides weights
    step_times: StepTimes = field(default_factory=dict, repr=False)
    modules: tuple[nn.Module, ...] = field(init=False)
    _grey: Tensor | None = field(init=False, default=None, repr=False)
    _why_blind: str | None = field(init=False, default=None, repr=False)  # None: nobody asked yet
    recovery: Recovery = field(init=False)  # calls again what memory did not last for; a job puts its own here
    unet_runner: UnetRunner = field(init=False)
    graphs: DenoiserGraphs = field(init=False)  # of the denoiser's calls, where a job wants them
    decoded_weights: DecodedWeights = field(init=False, default_factory=DecodedWeights)  # kept by the denoiser's blocks
    vae_runner: VaeRunner = field(init=False)

    def __post_init__(self) -> None:
        self.modules = (*self.text_encoders.values(), self.unet, self.vae)
        self.recovery = Recovery()
        self.unet_runner = UnetRunner()
        self.graphs = DenoiserGraphs(recorder_of(self.plan.device), self.plan.device)
        self.vae_runner = VaeRunner(self.plan.device, self.plan.vae_dtype, check_nan=self.plan.check_nan)

    @property
    def device(self) -> torch.device:
        """Where it computes."""
        return self.plan.device

    @property
    def text_encoder(self) -> Any:
        """The first text encoder."""
        return next(iter(self.text_encoders.values()))

    @property
    def text_widths(self) -> list[int]:
        """The widths of the vectors that the text encoders take from embeddings."""
        return [int(self.text_encoders[name].config.hidden_size) for name in self.family.texts.embedding_components]

    @property
    def has_optional(self) -> bool:
        """Whether the text encoder that its family can do without is there, and so in its images."""
        optional = self.family.texts.optional
        return optional is not None and optional.component in self.text_encoders

    @property
    def parameters(self) -> int:
        """Number of weights in all components."""
        return sum(
            (shape_of(layer, name) or torch.Size()).numel()
            for layer, name in {
                id(parameter): (layer, name)
                for module in self.modules
                for layer in module.modules()
                for name, parameter in layer._parameters.items()
                if parameter is not None
            }.values()
        )

    @property
    def is_low_precision(self) -> bool:
        """Whether weights are stored in few bits, because the plan says so or because the file has them so."""
        return self.plan.is_low_precision or any(
            (state := stored_state(layer)) is not None and "weight" in state.formats
            for module in self.modules
            for layer in module.modules()
        )

    @property
    def stored_bytes(self) -> int:
        """Bytes of all weights as they lie in memory."""
        return sum(stored_bytes(module) for module in self.modules)

    @contextmanager
    def computing(self) -> Iterator[None]:
        """Under which UNet and text encoders run: autocast, where the plan says so."""
        if self.plan.mode is not ComputeMode.AUTOCAST:
            yield
            return
        with autocast(self.plan.device, self.plan.compute_dtype):
            yield

    @property
    def autoencoder(self) -> Autoencoder:
        """Return what turns images into its latents and back."""
        return self.architecture.autoencoder

    @property
    def default_size_px(self) -> int:
        """The side of the images the model was trained on."""
        return self.architecture.latent_side * self.downscale

    @property
    def downscale(self) -> int:
        """Pixels a latent stands for, along one side."""
        return self.autoencoder.downscale

    @property
    def size_multiple_px(self) -> int:
        """Pixels that the sides of its images are multiples of."""
        return self.downscale * self.family.latents.multiple

    def latent_size(self, size_px: tuple[int, int]) -> tuple[int, int]:
        """(height, width) in latent units of images of `size_px` (width, height), cut down to what can be computed."""
        width, height = (side // self.size_multiple_px * self.family.latents.multiple for side in size_px)
        return height, width

    @property
    def latent_channels(self) -> int:
        """Channels of a latent."""
        return self.autoencoder.channels

    @property
    def image_channels(self) -> int:
        """Channels that the denoiser wants behind those of the latent: those of `ModelFamily.inpainting_input`, or as
        many as the latent has for instruct-pix2pix, else 0."""
        return self.family.denoiser.sizes(self.unet).channels - self.latent_channels

    @property
    def edits_images(self) -> bool:
        """Whether it is an instruct-pix2pix model, which sees the latent of a whole image."""
        return self.image_channels == self.latent_channels

    @property
    def takes_references(self) -> bool:
        """Whether it is shown reference images next to the one that it makes."""
        denoiser = self.family.denoiser
        takes = denoiser.takes_references(self.unet, self.info.name)
        return takes and not (denoiser.references_in_text and why_blind(self))

    def predict(self, x: Tensor, timesteps: Tensor, context: Tensor | DenoiserContext) -> Tensor:
        """The denoiser's raw prediction (eps, v or a flow).

        `x` [B,C,h,w] as the denoiser takes it, `timesteps` [B] (fractions allowed), `context` of as many rows, or its
        `crossattn` [B,tokens,width] alone. Computes as the plan says, returns x's dtype.
        """
        if isinstance(context, Tensor):
            context = DenoiserContext(context)
        return self.recovery.run("denoise", lambda: self.predict_once(x, timesteps, context))

    def predict_once(self, x: Tensor, timesteps: Tensor, context: DenoiserContext) -> Tensor:
        """`predict` for callers with a recovery of their own: memory that runs out is their error."""
        return self.unet_runner.run(self._predict, x, timesteps, context)

    def _predict(self, x: Tensor, timesteps: Tensor, context: DenoiserContext) -> Tensor:
        device, dtype = self.unet_runner.device or x.device, self.unet_runner.dtype or self.plan.offload_dtype
        image, extra = context.image, dict(context.extra)
        if image is not None and self.takes_references:
            extra[self.shown_as], image = image, None
        whole = x if image is None else torch.cat([x, image.to(x)], dim=1)
        wanted = self.family.denoiser.sizes(self.unet).channels
        if whole.shape[1] != wanted:
            raise InvalidValueError(
                f"{self.info.name} works on latents of {wanted} channels, and those of the model before it have "
                f"{whole.shape[1]}. Choose a refiner or a hires checkpoint of the first model's family, or for hires "
                "fix an upscaler on pixels."
            )
        vector = context.vector
        inputs = ModelInputs(
            whole.to(device, dtype),
            timesteps.to(device),
            context.crossattn.to(device, dtype),
            None if vector is None else vector.to(device, dtype),
            {name: _placed(value, device, dtype) for name, value in extra.items()},
            None if context.mask is None else context.mask.cpu(),
        )
        with self.computing():
            output = (
                self._run(inputs) if self.unet_runner.device is None else self.family.denoiser.run(self.unet, inputs)
            )
        return output.to(x.device, x.dtype)

    def _run(self, inputs: ModelInputs) -> Tensor:
        """The denoiser's call, replayed where it was recorded."""
        if not self.graphs.is_on:
            return self.family.denoiser.run(self.unet, inputs)

        def call(tensors: Sequence[Tensor]) -> Tensor:
            return self.family.denoiser.run(self.unet, inputs.with_tensors(tensors))

        return self.graphs.run(self.unet, call, inputs.tensors, inputs.kind)

    def decode(self, latent: Tensor) -> Tensor:
        """Scaled latents [B,C,h,w] to images [B,3,8h,8w] in -1..1, float32; NaN raises `NumericalError`. By the tiny
        decoder where a job has chosen it."""
        tiny = self.tiny_vae.decoder
        return self.decode_full(latent) if tiny is None else self.run_tiny(tiny, latent)

    def encode(self, images: Tensor) -> Tensor:
        """Images [B,3,H,W] in -1..1 to the mean of their scaled latents, float32; see `decode`."""
        tiny = self.tiny_vae.encoder
        return self.encode_moments(images)[0] if tiny is None else self.run_tiny(tiny, images)

    def run_tiny(self, tiny: TinyHalf, x: Tensor) -> Tensor:
        """Run `tiny` on latents or images, on the device and in the dtype in which the VAE would run."""
        return self.recovery.run(f"{tiny.half[:2]}code", lambda: tiny.run(x, self.vae_runner))

    def decode_full(self, latent: Tensor) -> Tensor:
        """`decode` by the VAE itself."""

        def decode() -> Tensor:
            own = self.autoencoder.to_own(self.vae, latent)
            return self.vae_runner.decode(self.autoencoder, self.vae, own)

        return self.recovery.run("decode", decode)

    def grey_latent(self, height: int, width: int) -> Tensor:
        """The scaled latent [C,h,w] of an even grey image, float32; encoded once a size."""
        if self._grey is None or self._grey.shape[1:] != (height, width):
            images = torch.zeros(1, 3, height * self.downscale, width * self.downscale)
            self._grey = self.encode_moments(images)[0][0]
        return self._grey

    def encode_moments(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Images [B,3,H,W] in -1..1 to mean and standard deviation of their scaled latents, float32."""
        own = self.recovery.run("encode", lambda: self.vae_runner.moments(self.autoencoder, self.vae, images))
        return self.autoencoder.moments(self.vae, own)


def why_blind(model: LoadedModel) -> str:
    """Return why the text encoder of a model cannot see images; "" where it can, or no model of its family does."""
    if model._why_blind is None:
        model._why_blind, tower = "", model.family.texts.tower
        with open_checkpoint(model.info.path, modules=model.info.modules) as file:
            try:
                if tower is not None:
                    tower(file.entries)
            except CheckpointError as error:
                model._why_blind = f"{model.info.name}: {error}"
    return model._why_blind


def _placed(value: Extra, device: torch.device, dtype: torch.dtype) -> Extra:
    """One number for each row keeps its precision, as timesteps do."""
    if isinstance(value, Tensor):
        return value.to(device, dtype) if value.ndim != 1 else value.to(device)
    return tuple(item.to(device, dtype) for item in value)


def unused_parameters(model: LoadedModel) -> tuple[str, ...]:
    """List what it has no use for: the keys of the request's parameters that its denoiser does not read, and `writing`
    and `describing` where its text encoder does not do that."""
    guidance, texts = model.family.denoiser.guidance(model.unet), model.family.texts
    is_read = {
        "cfg_scale": guidance is not GuidanceType.NONE,
        "distilled_cfg_scale": guidance is GuidanceType.DISTILLED,
        "image_cfg_scale": model.edits_images,
        "references": model.takes_references,
        "writing": texts.writing is not None,
        "describing": texts.writing is not None and texts.tower is not None,
    }
    return tuple(name for name, reads in is_read.items() if not reads)
