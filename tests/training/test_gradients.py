"""A step's loss and gradients: those of diffusers with a LoRA of plain PyTorch, and unchanged by what saves memory."""

import copy
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from diffusers import DDPMScheduler
from torch import Tensor, nn
from torch.nn import functional as F

from lib_training.base_model import load_base
from lib_training.config import TrainingConfig, config_of
from lib_training.failures import TrainingError
from lib_training.stepping import Batch, Trainer
from lib_training.texts import Caption, CaptionEncoder
from modules.adapters.algorithms.adapter import Adapter
from modules.errors import InvalidValueError, MemoryShortageError
from modules.models.loading.loaded import LoadedModel
from recipes.loras.example import SHIPPED
from tests.models.family_files import write_family
from tests.recordings import CONFIGS
from tests.rounding import rounding_of
from tests.thorough import thoroughly

CPU = torch.device("cpu")
SIZE = (64, 64)
CAPTIONS = (Caption("a red toy, on grass", SIZE), Caption("", SIZE, is_dropped=True))
LORA = {"type": "lora", "rank": 4, "conv_rank": 2, "alpha": 2.0}
EVERY_KIND = ("lora", "dora", "loha", "lokr")


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The path of a tiny checkpoint, written once."""
    folder = tmp_path_factory.mktemp("families")
    known: dict[str, Path] = {}

    def path(name: str) -> Path:
        if name not in known:
            known[name] = write_family(folder, name)
        return known[name]

    return path


def config(**sections: Any) -> TrainingConfig:
    return config_of({"adapter": LORA, "loss": {"min_snr": None}, **sections})


def randomised(trainer: Trainer) -> Trainer:
    """Values that are zero at the beginning hide the gradients of the others."""
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in trainer.parameters:
            if not bool(parameter.any()):
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.02)
    return trainer


def batch_of(trainer: Trainer) -> Batch:
    latents = torch.randn(2, trainer.model.latent_channels, 8, 8, generator=torch.Generator().manual_seed(1))
    if trainer.trains_text:
        return Batch(latents, None, CAPTIONS)
    return Batch(latents, trainer.encoder.encode(CAPTIONS))


def gradients(model: LoadedModel, settings: TrainingConfig) -> tuple[float, list[Tensor]]:
    trainer = randomised(Trainer(model, settings, CaptionEncoder(model), (8, 8)))
    try:
        loss = trainer.gradients([batch_of(trainer)], seed=5)
        found = [parameter.grad for parameter in trainer.parameters]
        missing = [index for index, gradient in enumerate(found) if gradient is None]
        last = [each for each in trainer.layers if each.is_text and "layers_2_" in each.name]
        assert len(missing) <= len(last) * 3  # SDXL takes the last but one layer of CLIP-L
        return loss, [gradient.clone() for gradient in found if gradient is not None]
    finally:
        trainer.close()


def difference(found: Sequence[Tensor], wanted: Sequence[Tensor]) -> float:
    """Relative, over all values."""
    one, other = (torch.cat([gradient.flatten() for gradient in each]) for each in (found, wanted))
    return float((one - other).norm() / other.norm())


# -- diffusers ---------------------------------------------------------------------------------------------------------


class PlainLora(nn.Module):
    """As Hu et al. write it, around a layer of diffusers."""

    def __init__(self, layer: Any, down: Tensor, up: Tensor, scale: float) -> None:
        super().__init__()
        self.layer, self.scale = layer, scale
        self.down, self.up = nn.Parameter(down.detach().clone()), nn.Parameter(up.detach().clone())

    def forward(self, x: Tensor, *_: Any) -> Tensor:
        out: Tensor = self.layer(x)
        if isinstance(self.layer, nn.Linear):
            return out + F.linear(F.linear(x, self.down), self.up) * self.scale
        hidden = F.conv2d(x, self.down, None, self.layer.stride, self.layer.padding)
        return out + F.conv2d(hidden, self.up) * self.scale


@pytest.mark.parametrize("name", ["sd1", "sd2-v", "sdxl", "sd3"])
def test_one_step_equals_diffusers(files: Any, name: str) -> None:
    model = load_base(files(name), CONFIGS, None, CPU)
    reference = copy.deepcopy(model.unet)
    trainer = randomised(Trainer(model, config(), CaptionEncoder(model), (8, 8)))
    paths = {id(layer): path for path, layer in model.unet.named_modules()}
    plain = []
    for each in trainer.layers:
        path = paths[id(each.layer)]
        down, up = each.parameters["lora_down.weight"], each.parameters["lora_up.weight"]
        wrapped = PlainLora(reference.get_submodule(path), down, up, each.alpha / len(down))
        parent, _, own = path.rpartition(".")
        setattr(reference.get_submodule(parent), own, wrapped)
        plain.append(wrapped)
    batch = batch_of(trainer)
    generator = torch.Generator().manual_seed(5)
    timesteps = trainer.objective.draw_timesteps(2, generator)
    noise = trainer.objective.draw_noise(tuple(batch.latents.shape), generator)
    assert batch.conditionings is not None
    context = torch.stack([item.crossattn for item in batch.conditionings])
    vectors = [item.vector for item in batch.conditionings if item.vector is not None]
    if name == "sd3":
        sigma = timesteps.add(1).double() / 1000
        sigma = (3 * sigma / (1 + 2 * sigma)).float().view(-1, 1, 1, 1)
        out = reference(
            hidden_states=(1 - sigma) * batch.latents + sigma * noise,
            timestep=sigma.flatten() * 1000,
            encoder_hidden_states=context,
            pooled_projections=torch.stack(vectors),
        ).sample
        target = noise - batch.latents
    else:
        scheduler = DDPMScheduler(beta_start=0.00085, beta_end=0.012, beta_schedule="scaled_linear")
        labels = {"class_labels": torch.stack(vectors)} if vectors else {}
        noisy = scheduler.add_noise(batch.latents, noise, timesteps)
        out = reference(noisy, timesteps, encoder_hidden_states=context, **labels).sample
        is_v = name.endswith("v")
        target = scheduler.get_velocity(batch.latents, noise, timesteps) if is_v else noise
    expected = F.mse_loss(out, target)
    torch.autograd.backward(expected)
    wanted = [gradient for wrapped in plain for gradient in (wrapped.down.grad, wrapped.up.grad)]
    loss = trainer.gradients([batch], seed=5)
    found = [parameter.grad for parameter in trainer.parameters]
    trainer.close()
    most = rounding_of(model.unet)
    assert loss == pytest.approx(float(expected.detach()), rel=most)
    assert difference(found, wanted) < most  # type: ignore[arg-type] # each has one


# -- what saves memory -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("storage", "least"),
    [
        *(("fp8_e4m3fn_row", 0.995), ("int8_row", 0.995), ("fp8_e4m3fn", 0.98), ("fp8_e5m2", 0.95)),
        ("int8_convrot", 0.995),
    ],
)
def test_gradients_on_eight_bits_point_where_those_in_fp32_do(storage: str, least: float) -> None:
    """On the bundled model, which is trained: random weights add up rounding as trained ones do not."""

    def all_gradients(storage: str | None) -> Tensor:
        return torch.cat([each.flatten() for each in gradients(load_base(SHIPPED, CONFIGS, storage, CPU), config())[1]])

    assert float(F.cosine_similarity(all_gradients(storage), all_gradients(None), dim=0)) >= least


SAVING = (
    {"memory": {"checkpointing": "all", "offload": "ram"}},
    {"memory": {"checkpointing": "all but every 2"}},
    {"memory": {"checkpointing": "blocks 0, -1", "split_feed_forward": 3}},
    {"memory": {"checkpointing": "200 MB"}},
    {"memory": {"split_feed_forward": 4}},
)


# What saves memory knows blocks, not kinds of adapters: each kind and each family once.
@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("bundled", "dora"),
        ("sdxl", "loha"),
        ("sd3.5", "lokr"),
        thoroughly("bundled", "lora"),
        thoroughly("sd3.5", "lora"),
    ],
)
def test_what_saves_memory_leaves_gradients_as_they_are(files: Any, name: str, kind: str) -> None:
    adapter = {"adapter": {**LORA, "type": kind}}
    model = load_base(SHIPPED if name == "bundled" else files(name), CONFIGS, "fp8_e4m3fn_row", CPU)
    most = rounding_of(model.unet)
    loss, wanted = gradients(model, config(**adapter))
    for saving in SAVING:
        again, found = gradients(model, config(**adapter, **saving))
        assert again == pytest.approx(loss, rel=most)
        assert difference(found, wanted) < most, saving


# Pairs of storage and kind: DoRA asks for whole weights, a LoRA does not.
@pytest.mark.parametrize(
    ("storage", "level", "kind"),
    [
        ("fp8_e4m3fn_row", "blocks", "dora"),
        ("int8_row", "layers", "lora"),
        (None, "blocks", "lora"),
        thoroughly("fp8_e4m3fn_row", "blocks", "lora"),
        thoroughly("int8_row", "layers", "dora"),
        thoroughly(None, "blocks", "dora"),
    ],
)
def test_a_streamed_base_gives_the_same_gradients(files: Any, storage: str | None, level: str, kind: str) -> None:
    settings = config(adapter={**LORA, "type": kind, "text_rank": 2}, memory={"checkpointing": "every 2"})
    for path in (SHIPPED, files("sdxl")):
        resident = load_base(path, CONFIGS, storage, CPU)
        most = rounding_of(resident.unet)
        _, wanted = gradients(resident, settings)
        model = load_base(path, CONFIGS, storage, CPU, level)
        assert model.streaming is not None
        _, found = gradients(model, settings)
        assert difference(found, wanted) < most


def test_eight_bits_without_checkpointing_keep_no_decoded_weight(files: Any) -> None:
    """The trap of other programs: every weight that was decoded waits for the backward pass."""

    def kept_bytes(storage: str | None) -> int:
        model = load_base(files("sdxl"), CONFIGS, storage, CPU)
        trainer = Trainer(model, config(), CaptionEncoder(model), (8, 8))
        own = {parameter.untyped_storage().data_ptr() for parameter in model.unet.parameters()}
        kept: dict[int, int] = {}

        def keep(tensor: Tensor) -> Tensor:
            storage = tensor.untyped_storage()
            if storage.data_ptr() not in own:
                kept[storage.data_ptr()] = storage.nbytes()
            return tensor

        batch = batch_of(trainer)
        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            loss = trainer.loss(batch, torch.randn(batch.latents.shape), torch.tensor([10, 900]))
        del loss
        trainer.close()
        return sum(kept.values())

    assert kept_bytes("fp8_e4m3fn_row") <= 1.05 * kept_bytes(None)


# -- memory that runs out, values that are not finite ------------------------------------------------------------------


def test_a_step_that_runs_out_of_memory_is_made_again_with_less(files: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def stepped(failures: int) -> tuple[tuple[str, ...], list[Tensor], float]:
        model = load_base(files("sd1"), CONFIGS, None, CPU)
        trainer = Trainer(model, config(), CaptionEncoder(model), (8, 8))
        left, predict = [failures], model.predict_once

        def failing(*given: Any) -> Tensor:
            if left[0]:
                left[0] -= 1
                raise torch.OutOfMemoryError("CUDA out of memory")
            return predict(*given)

        monkeypatch.setattr(model, "predict_once", failing)
        result = trainer.train_step([batch_of(trainer)], seed=2)
        trainer.close()
        return result.fallbacks, [parameter.detach() for parameter in trainer.parameters], rounding_of(model.unet)

    _, wanted, most = stepped(0)
    fallbacks, found, _ = stepped(3)
    assert fallbacks == ("with freed memory", "with every block computed again", "with feed-forwards in 8 pieces")
    assert difference(found, wanted) < most
    with pytest.raises(MemoryShortageError, match="Choose a smaller budget"):
        stepped(4)


@pytest.mark.parametrize(
    ("step", "cause"), [(0, "broken base or VAE"), (100, "lower learning rate")], ids=["at once", "later"]
)
def test_nan_changes_nothing_and_names_the_likely_cause(files: Any, step: int, cause: str) -> None:
    model = load_base(files("sd1"), CONFIGS, None, CPU)
    trainer = Trainer(model, config(), CaptionEncoder(model), (8, 8))
    before = [parameter.detach().clone() for parameter in trainer.parameters]
    batch = batch_of(trainer)
    trainer.step = step
    with pytest.raises(TrainingError, match=cause):
        trainer.train_step([Batch(batch.latents * float("nan"), batch.conditionings)], seed=1)
    trainer.close()
    assert all(torch.equal(one, other) for one, other in zip(before, trainer.parameters, strict=True))


# -- the fused backward pass -------------------------------------------------------------------------------------------


def fused_config(optimizer: str = "adamw", fused: bool = True, **sections: Any) -> TrainingConfig:
    training = {"optimizer": optimizer, "fused_backward": fused, "clip_gradients": 0.0, "warmup": 0}
    return config(training=training, adapter={**LORA, "text_rank": 2}, memory={"checkpointing": "all"}, **sections)


@pytest.mark.parametrize("optimizer", ["adamw", "adafactor"])
def test_a_fused_backward_pass_moves_as_whole_steps_do(files: Any, optimizer: str) -> None:
    def stepped(fused: bool) -> tuple[list[float], list[Tensor], Any]:
        model = load_base(files("sd1"), CONFIGS, None, CPU)
        trainer = Trainer(model, fused_config(optimizer, fused), CaptionEncoder(model), (8, 8))
        results = [trainer.train_step([batch_of(trainer)], seed) for seed in range(3)]
        trainer.close()
        assert all(parameter.grad is None for parameter in trainer.parameters)
        said = [value for result in results for value in (result.loss, result.norm)]
        return said, [parameter.detach() for parameter in trainer.parameters], trainer.optimizer.state_dict()

    whole, fused = stepped(False), stepped(True)
    assert fused[0] == pytest.approx(whole[0], rel=1e-5)
    assert all(torch.equal(one, other) for one, other in zip(whole[1], fused[1], strict=True))
    assert whole[2]["param_groups"] == fused[2]["param_groups"]
    assert whole[2]["state"].keys() == fused[2]["state"].keys()


def test_at_most_one_gradient_lies_in_memory_during_a_fused_pass(files: Any) -> None:
    model = load_base(files("sd1"), CONFIGS, None, CPU)
    trainer = Trainer(model, fused_config(), CaptionEncoder(model), (8, 8))
    most = 0

    def count(parameter: Tensor) -> None:
        nonlocal most
        most = max(most, sum(other.grad is not None for other in trainer.parameters))

    for parameter in trainer.parameters:
        parameter.register_post_accumulate_grad_hook(count)  # type: ignore[no-untyped-call]
    trainer.train_step([batch_of(trainer)], seed=1)
    trainer.close()
    assert most == 1


@pytest.mark.parametrize(
    ("error", "said"), [("out of memory", "Set memory.checkpointing to all"), ("nan", "A gradient is no longer")]
)
def test_a_fused_pass_that_ends_in_its_middle_is_no_state_to_keep(
    files: Any, monkeypatch: pytest.MonkeyPatch, error: str, said: str
) -> None:
    model = load_base(files("sd1"), CONFIGS, None, CPU)
    trainer = Trainer(model, fused_config(), CaptionEncoder(model), (8, 8))

    def fail(parameter: Tensor) -> None:
        if error == "nan":
            assert parameter.grad is not None
            parameter.grad.fill_(float("nan"))
        else:
            raise torch.OutOfMemoryError("CUDA out of memory")

    # The first layer's gradient comes late, when others have been moved.
    late = trainer.layers[0].parameters["lora_up.weight"]
    late.register_post_accumulate_grad_hook(fail)  # type: ignore[no-untyped-call]
    with pytest.raises(TrainingError, match=said):
        trainer.train_step([batch_of(trainer)], seed=1)
    trainer.close()
    assert trainer.is_torn
    whole = Trainer(model, fused_config(), CaptionEncoder(model), (8, 8))
    batch = batch_of(whole)
    with pytest.raises(TrainingError, match="The loss is no longer"):
        whole.train_step([Batch(batch.latents * float("nan"), batch.conditionings, batch.captions)], seed=1)
    whole.close()
    assert not whole.is_torn


def test_inpainting_models_are_refused(files: Any) -> None:
    model = load_base(files("sd1-inpainting"), CONFIGS, None, CPU)
    with pytest.raises(InvalidValueError, match="Choose the base model"):
        Trainer(model, config(), CaptionEncoder(model), (8, 8))


def test_closing_gives_the_model_back(files: Any) -> None:
    model = load_base(files("sd1"), CONFIGS, None, CPU)
    classes = [type(module) for module in model.unet.modules()]
    Trainer(model, config(adapter={**LORA, "text_rank": 2}), CaptionEncoder(model), (8, 8)).close()
    assert [type(module) for module in model.unet.modules()] == classes
    assert not any(isinstance(module, Adapter) for module in model.unet.modules())
