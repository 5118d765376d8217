"""Network files: what is read, what is refused, what a model calls its layers, and the algebra of the kinds."""

import pickle
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from PIL.PngImagePlugin import PngInfo
from safetensors.torch import save_file
from torch import Tensor, nn

from modules.adapters.adapter_facts import AdapterError, digests_of
from modules.adapters.adapter_file import read_adapter, read_adapter_file, split_key
from modules.adapters.algorithms.adapter import Adapter
from modules.adapters.block_weights import LAYOUTS, BlockWeights, block_of, read_block_weights
from modules.adapters.catalogue import AdapterCatalogue
from modules.adapters.embeddings import EmbeddingStore, read_embedding
from modules.adapters.hypernetworks import read_hypernetwork
from modules.adapters.preset_file import read_presets
from modules.adapters.step_range import StepRange
from modules.adapters.tags import LoraTag, lora_tags
from modules.adapters.targets import TargetTable
from modules.errors import InvalidValueError
from modules.memory.changes import Budget as DeltaBudget
from modules.memory.changes import DecodedChanges, changed_weight, joined_branches
from modules.memory.formats.format import FORMATS
from modules.memory.formats.stochastic import encode_stochastic
from modules.prompting.extra_networks import extract_tags
from tests.recordings import REFERENCE

FACTORS = {"a.lora_up.weight": torch.ones(4, 2), "a.lora_down.weight": torch.ones(2, 4)}
LORAS = REFERENCE / "models" / "Lora"


class Payload:
    """A pickle that would run a program."""

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[str]]:
        import os

        return os.system, ("touch /tmp/featherweight-was-here",)


@pytest.mark.parametrize("read", [read_adapter_file, read_embedding, read_hypernetwork], ids=lambda f: f.__name__)
def test_pickles_that_run_code_are_refused(read: Callable[[Path], Any], tmp_path: Path) -> None:
    path = tmp_path / "evil.pt"
    path.write_bytes(pickle.dumps({"a": Payload()}))
    with pytest.raises(AdapterError, match="refused"):
        read(path)
    torch.save({"string_to_param": {"*": torch.ones(1, 4)}, "x": Payload()}, path)
    with pytest.raises(AdapterError, match="refused"):
        read(path)
    assert not Path("/tmp/featherweight-was-here").exists()


def test_a_pickle_of_tensors_is_read(tmp_path: Path) -> None:
    torch.save(
        {"lora_unet_a.lora_up.weight": torch.ones(8, 2), "lora_unet_a.lora_down.weight": torch.ones(2, 4)},
        tmp_path / "a.pt",
    )
    assert read_adapter_file(tmp_path / "a.pt").adapters["lora_unet_a"].rank == 2


@pytest.mark.parametrize(
    ("tensors", "said"),
    [
        ({"a.lora_up.weight": torch.full((4, 2), float("nan")), "a.lora_down.weight": torch.ones(2, 4)}, "NaN"),
        ({"a.lora_up.weight": torch.ones(4, 0), "a.lora_down.weight": torch.ones(0, 4)}, "rank 0"),
        ({"a.something": torch.ones(4)}, "no known algorithm"),
        ({"bundle_emb.x.string_to_param.*": torch.ones(1, 4)}, "no adapter in it"),
    ],
)
def test_files_that_cannot_be_used(tensors: dict[str, Tensor], said: str, tmp_path: Path) -> None:
    save_file(tensors, tmp_path / "a.safetensors")
    with pytest.raises(AdapterError, match=said):
        read_adapter_file(tmp_path / "a.safetensors")


def test_a_damaged_file_and_one_that_is_gone(tmp_path: Path) -> None:
    (tmp_path / "a.safetensors").write_bytes(b"nothing")
    for name in ("a.safetensors", "gone.safetensors", "gone.pt"):
        with pytest.raises(AdapterError):
            read_adapter_file(tmp_path / name)


@pytest.mark.parametrize(
    ("key", "layer", "end"),
    [
        ("lora_unet_x.lora_up.weight", "lora_unet_x", "lora_up.weight"),
        ("lora_unet_x.alpha", "lora_unet_x", "alpha"),
        ("unet.down_blocks.0.to_k.lora_A.weight", "unet.down_blocks.0.to_k", "lora_A.weight"),
        ("unet.mid.to_q.lora.down.weight", "unet.mid.to_q", "lora.down.weight"),
        ("text_encoder.layers.0.fc1.alpha", "text_encoder.layers.0.fc1", "alpha"),
        ("oft_unet_x.oft_blocks", "oft_unet_x", "oft_blocks"),
        ("lycoris_x.lokr_w1", "lycoris_x", "lokr_w1"),
        ("lycoris_x.lora_up.weight", "lycoris_x", "lora_up.weight"),
        ("unet.mid.to_q.lora_magnitude_vector", "unet.mid.to_q", "lora_magnitude_vector"),
        ("unet.mid.to_q.lora_magnitude_vector.weight", "unet.mid.to_q", "lora_magnitude_vector.weight"),
    ],
)
def test_names_of_tensors(key: str, layer: str, end: str) -> None:
    assert split_key(key) == (layer, end)


def test_hashes_are_those_that_infotexts_have() -> None:
    catalogue = AdapterCatalogue((LORAS,))
    info = catalogue.find("tiny_alias_a")
    assert info is not None
    assert info.name == "tiny-lora-a"
    assert catalogue.short_hash_of(info) == "72df6da37eb7"
    assert catalogue.find("72df6da37e") == info
    assert catalogue.find("72df") is None
    assert digests_of(info.path).tensors.startswith("72df6da37eb7")


def test_odd_names_are_found_and_paths_are_not(tmp_path: Path) -> None:
    for name in ("a [b] (c)", "Größe 日本", "x y"):
        save_file(
            {"a.lora_up.weight": torch.ones(4, 2), "a.lora_down.weight": torch.ones(2, 4)},
            tmp_path / f"{name}.safetensors",
        )
    catalogue = AdapterCatalogue((tmp_path,))
    for name in ("a [b] (c)", "Größe 日本", "X Y"):
        assert catalogue.find(name) is not None
    assert catalogue.find("../x y") is None
    (tmp_path / "x y.safetensors").unlink()
    catalogue.refresh()
    assert catalogue.find("x y") is None


ONES = read_block_weights("ALL").blocks
FIRST_TWO = tuple((name, float(name in ("IN01", "IN02"))) for name, _ in ONES)


def test_elements_of_a_tag_are_factors_of_layers() -> None:
    _, tags = extract_tags("<lora:a:0.5:lbw=INALL:lbwe=IN01-IN02:attn1 ff:0,OUT03::2:start=2>")
    (found,), problems = lora_tags(tags)
    weights = BlockWeights(blocks=found.blocks)
    assert not problems and (found.te_strength, found.unet_strength, found.steps.start) == (0.5, 0.5, 2)
    assert [weights.of("IN01", path) for path in ("b.attn1.to_q", "b.ff.net", "b.attn2.to_q")] == [0.0, 0.0, 1.0]
    assert weights.of("OUT03", "b.attn2") == 2.0 and weights.of("OUT04", "b.attn2") == 0.0
    _, tags = extract_tags("<lora:a:1:lbwe=ATTNDEEPOFF><lora:b:1:lbwe=IN77:attn:0>")
    (found,), problems = lora_tags(tags)
    assert BlockWeights(blocks=found.blocks).of("M00", "x.attn1") == 0.0
    assert "no rule such as IN05-OUT05:attn:0" in problems[0]


def test_blocks_of_layers_and_lists_of_weights() -> None:
    before = "model.diffusion_model."
    assert block_of(f"{before}input_blocks.4.1.proj_in.weight") == "IN04"
    assert block_of(f"{before}middle_block.1.norm.weight") == "M00"
    assert block_of(f"{before}output_blocks.11.0.out.weight") == "OUT11" and block_of(f"{before}out.2.weight") == ""
    for count, layout in LAYOUTS.items():
        found = read_block_weights(",".join(str(place) for place in range(count)))
        assert found.base == 0.0 and [found.of(name) for name in layout[1:]] == list(range(1, count))
        assert found.of("elsewhere") == 1.0
    for wrong in ("1,2,3", "MIDDLE,X", "", "nan," * 16 + "nan"):
        with pytest.raises(InvalidValueError, match="ignored"):
            read_block_weights(wrong)


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        ("<lora:a>", LoraTag("a")),
        ("<lora:a:0.5>", LoraTag("a", 0.5, 0.5)),
        ("<lora:a:0.5:0.8>", LoraTag("a", 0.5, 0.8)),
        ("<lora:a:0.5:0.8:4>", LoraTag("a", 0.5, 0.8, 4)),
        ("<lora:a:te=0.1:unet=0.2:dyn=3>", LoraTag("a", 0.1, 0.2, 3)),
        ("<lora:a:0.5:unet=0.2>", LoraTag("a", 0.5, 0.2)),
        ("<lyco:b:-1>", LoraTag("b", -1.0, -1.0)),
        ("<lora:a:0.5:lbw=all>", LoraTag("a", 0.5, 0.5, blocks=ONES)),
        ("<lora:a:0.5:INS>", LoraTag("a", 0.5, 0.5, blocks=FIRST_TWO)),
        (f"<lora:a:1:lbw={','.join(['0'] * 17)}>", LoraTag("a", 0.0, 1.0, blocks=tuple((k, 0.0) for k, _ in ONES))),
    ],
)
def test_forms_of_the_tag(prompt: str, expected: LoraTag) -> None:
    assert lora_tags(extract_tags(prompt)[1]) == ([expected], [])


def test_users_have_presets_of_their_own(tmp_path: Path) -> None:
    first, second = tmp_path / "lbwpresets.txt", tmp_path / "second.txt"
    first.write_text("# mine\nFace:" + ",".join(["1"] * 17) + "\n\nRandom:R,1\nALL : " + ",".join(["0"] * 17) + "\n")
    second.write_text("FACE:0,0\nother:" + ",".join(["2"] * 12) + "\n")
    own = read_presets([tmp_path / "none.txt", first, second])
    assert read_block_weights("face", own).blocks == ONES and read_block_weights("all", own).base == 0.0
    assert read_block_weights("other", own) == read_block_weights(",".join(["2"] * 12))
    assert lora_tags(extract_tags("<lora:a:1:Face>")[1], presets=own) == ([LoraTag("a", blocks=ONES)], [])
    for name, said in (("random", "lbw=RANDOM:R,1: neither"), ("gone", "OUTS, OUTALL, FACE, RANDOM, OTHER")):
        with pytest.raises(InvalidValueError, match=said):
            read_block_weights(name, own)
    first.write_bytes(b"\xff\xfe\xff")
    with pytest.raises(InvalidValueError, match=r"lbwpresets.txt: the presets of block weights cannot be read"):
        read_presets([first])


@pytest.mark.parametrize("name", ["col:on", "a:b:c d", "x=1", "te=0.5", "[a] (b:1.2)", "Größe: 日本", "{x|y}"])
def test_names_with_colons_and_other_signs_are_named_in_full(name: str, tmp_path: Path) -> None:
    save_file(FACTORS, tmp_path / f"{name}.safetensors")
    save_file(FACTORS, tmp_path / "col.safetensors")
    catalogue = AdapterCatalogue((tmp_path,))
    for tag, expected in (
        (f"<lora:{name}>", LoraTag(name)),
        (f"<lora:{name}:0.5:0.8:4>", LoraTag(name, 0.5, 0.8, 4)),
        (f"<lora:{name}:te=0.1:unet=0.2>", LoraTag(name, 0.1, 0.2)),
        ("<lora:col:0.5>", LoraTag("col", 0.5, 0.5)),
    ):
        text, tags = extract_tags(f"a cat {tag}, [b:c:0.5]")
        assert text == "a cat , [b:c:0.5]"
        assert lora_tags(tags, lambda known: catalogue.find(known) is not None) == ([expected], [])
    assert catalogue.find(name) is not None


@pytest.mark.parametrize("prompt", ["<lora:a:x>", "<lora:a:1:y>", "<lora:a:1:1:0.5>", "<lora:a:nan>", "<lora:a:inf>"])
def test_tags_that_cannot_be_read_are_said(prompt: str) -> None:
    wanted, problems = lora_tags(extract_tags(prompt)[1])
    assert not wanted
    assert "ignored" in problems[0]


@pytest.mark.parametrize(
    ("named", "held"),
    [
        ("start=3", range(2, 10)),
        ("stop=8", range(7)),
        ("step=3-8", range(2, 7)),
        ("start=0.4:stop=8", range(3, 7)),
        ("start=1", range(10)),
        ("stop=1", range(0)),
    ],
)
def test_a_tag_names_steps(named: str, held: range) -> None:
    """The numbers are those of the step that the sampler has reported, which comes one call late."""
    (tag,), problems = lora_tags(extract_tags(f"<lora:a:0.5:{named}>")[1])
    assert not problems and replace(tag, steps=StepRange()) == LoraTag("a", 0.5, 0.5)
    assert [step for step in range(10) if tag.steps.holds(step, 10)] == list(held)


@pytest.mark.parametrize(
    ("tag", "said"),
    [
        ("<lora:a:start=x>", "start=x: it must be a step"),
        ("<lora:a:stop=-1>", "stop=-1: it must be a step from 0 on"),
        ("<lora:a:step=5>", "two steps, such as step=5-15"),
        ("<lora:a:start=8:stop=3>", "start=8 is not before stop=3"),
    ],
)
def test_steps_that_cannot_be_read_are_said(tag: str, said: str) -> None:
    wanted, (problem,) = lora_tags(extract_tags(tag)[1])
    assert not wanted and said in problem and problem.endswith("ignored.")


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.to_k = nn.Linear(4, 4)
        self.to_out = nn.ModuleList([nn.Linear(4, 4)])


def test_all_trainers_names_mean_the_same_layer() -> None:
    adapter = nn.Module()
    adapter.mid_block = Block()
    table = TargetTable({"unet": (adapter, lambda key: f"model.diffusion_model.middle_block.1.{key[10:]}")})
    names = (
        "lora_unet_mid_block_to_k",
        "lora_unet_middle_block_1_to_k",
        "unet.mid_block.to_k",
        "base_model.model.unet.mid_block.to_k",
        "model.diffusion_model.middle_block.1.to_k",
        "unet.mid_block.processor.to_k_lora",
        "oft_unet_mid_block_to_k",
        "oft_unet_middle_block_1_to_k",
        "lycoris_mid_block_to_k",
        "lycoris_unet_mid_block_to_k",
    )
    for name in names:
        target = table.find(name)
        assert target is not None, name
        assert target.layer is adapter.mid_block.to_k
    assert table.find("lora_unet_nothing") is None


def adapter(**factors: Tensor) -> Adapter:
    found = read_adapter({name.replace("__", "."): tensor for name, tensor in factors.items()})
    assert found is not None
    return found


def test_lora_is_alpha_over_rank_times_up_times_down() -> None:
    up, down = torch.randn(6, 2), torch.randn(2, 4)
    change = adapter(lora_up__weight=up, lora_down__weight=down, alpha=torch.tensor(1.0)).at(0.5, None)
    delta = change.weight_delta(torch.zeros(6, 4))
    assert delta is not None
    assert torch.allclose(delta, up @ down * 0.25)
    first = change.at(1.0, 1).weight_delta(torch.zeros(6, 4))
    assert first is not None
    assert torch.allclose(first, up[:, :1] @ down[:1] * 0.5)


@pytest.mark.parametrize("rows", [True, False])
def test_dora_gives_rows_or_columns_their_magnitude(rows: bool) -> None:
    weight = torch.randn(6, 4)
    magnitude = torch.rand(6, 1) + 1 if rows else torch.rand(1, 4) + 1
    change = adapter(lora_up__weight=torch.randn(6, 2), lora_down__weight=torch.randn(2, 4), dora_scale=magnitude)
    merged = weight + change.weight_delta(weight)  # type: ignore[operator]
    assert torch.allclose(merged.norm(dim=1 if rows else 0), magnitude.flatten(), atol=1e-5)


@pytest.mark.parametrize("shape", [(2, 4, 4), (2, 4, 2, 2)])
def test_rotations_keep_lengths(shape: tuple[int, ...]) -> None:
    """Cayley: (1 + Q)(1 - Q)^-1 of a skew Q is a rotation, so columns keep their norm."""
    weight = torch.randn(8, 5)
    change = adapter(oft_blocks=torch.randn(shape) * 0.3)
    merged = weight + change.weight_delta(weight)  # type: ignore[operator]
    assert not torch.allclose(merged, weight, atol=1e-2)
    assert torch.allclose(merged.norm(dim=0), weight.norm(dim=0), atol=1e-4)


def test_ia3_scales_rows_or_columns() -> None:
    weight = torch.randn(6, 4)
    rows = adapter(weight=torch.arange(6.0), on_input=torch.tensor(False)).weight_delta(weight)
    columns = adapter(weight=torch.arange(4.0), on_input=torch.tensor(True)).weight_delta(weight)
    assert rows is not None
    assert columns is not None
    assert torch.allclose(rows, weight * torch.arange(6.0)[:, None])
    assert torch.allclose(columns, weight * torch.arange(4.0))


def test_lokr_is_the_kronecker_product() -> None:
    first, second = torch.randn(2, 2), torch.randn(3, 2)
    delta = adapter(lokr_w1=first, lokr_w2=second, alpha=torch.tensor(7.0)).weight_delta(torch.zeros(6, 4))
    assert delta is not None
    assert np.allclose(delta.numpy(), np.kron(first.numpy(), second.numpy()), atol=1e-6)


@pytest.mark.parametrize(
    "layer", [nn.Linear(8, 6), nn.Conv2d(8, 6, 3, padding=1), nn.Conv2d(8, 6, 3, stride=2)], ids=str
)
def test_a_branch_is_the_delta(layer: nn.Linear | nn.Conv2d) -> None:
    """Beside the layer or in its weight: the same output, for several networks at once."""
    kernel = tuple(layer.weight.shape[2:])
    ones = (1,) * len(kernel)
    changes = [
        adapter(lora_up__weight=torch.randn(6, 2, *ones), lora_down__weight=torch.randn(2, 8, *kernel)).at(s, None)
        for s in (0.5, -1.0)
    ]
    if kernel:
        changes.append(
            adapter(
                lora_up__weight=torch.randn(6, 2, 1, 1),
                lora_down__weight=torch.randn(2, 8, 1, 1),
                lora_mid__weight=torch.randn(2, 2, *kernel),
            )
        )
    x = torch.randn(2, 8, 9, 9) if kernel else torch.randn(2, 8)
    with torch.no_grad():
        output = layer(x)
        for part in joined_branches(
            layer, [b for c in changes if (b := c.branch())], torch.float32, torch.device("cpu")
        ):
            output = part.add_to_output(layer, x, output)
        layer.weight.copy_(changed_weight(layer.weight.data, changes))
        assert torch.allclose(layer(x), output, atol=1e-4)


def test_deltas_beyond_the_budget_are_computed_again() -> None:
    change = adapter(diff=torch.ones(4, 4))
    for budget in (0, 1 << 20):
        meeting = DecodedChanges([change], DeltaBudget(budget))
        for _ in range(2):
            assert torch.equal(meeting.add_to("weight", torch.zeros(4, 4)), torch.ones(4, 4))
        assert bool(meeting._kept) == (budget > 0)


@pytest.mark.parametrize("storage", ["fp8_e4m3fn", "fp8_e5m2", "fp8_e4m3fn_row", "int8_row"])
def test_stochastic_rounding_keeps_the_mean(storage: str) -> None:
    entry = FORMATS.get(storage)
    weight = torch.full((200, 500), 0.013)
    weight[:, 0] = 0.1
    encoded = encode_stochastic(entry, weight, 1)
    decoded = entry.decode(encoded.data, encoded.scale, torch.empty(weight.shape))
    assert abs(float(decoded[:, 1:].mean()) - 0.013) < 2e-5
    again = encode_stochastic(entry, weight, 1)
    assert torch.equal(encoded.data.view(torch.uint8), again.data.view(torch.uint8))


def test_embeddings_of_all_layouts(tmp_path: Path) -> None:
    import base64
    import json

    torch.save({"string_to_param": {"*": torch.ones(2, 8)}, "name": "x", "step": 3}, tmp_path / "webui.pt")
    torch.save({"<word>": torch.ones(8)}, tmp_path / "diffusers.bin")
    save_file({"emb_params": torch.ones(3, 8)}, tmp_path / "plain.safetensors")
    save_file({"clip_l": torch.ones(1, 8), "clip_g": torch.ones(1, 12)}, tmp_path / "pair.safetensors")
    chunk = PngInfo()
    data = {"string_to_param": {"*": {"TORCHTENSOR": [[1.0] * 8]}}, "name": "inside", "step": 1}
    chunk.add_text("sd-ti-embedding", base64.b64encode(json.dumps(data).encode()).decode())
    Image.new("RGB", (8, 8)).save(tmp_path / "card.png", pnginfo=chunk)
    Image.new("RGB", (8, 8)).save(tmp_path / "just an image.png")
    save_file({"a": torch.ones(1), "b": torch.ones(1)}, tmp_path / "other.safetensors")
    store = EmbeddingStore(tmp_path)
    store.refresh()
    assert set(store.usable([8])) == {"webui", "diffusers", "plain", "pair", "inside"}
    assert set(store.usable([8, 12])) == {"pair"}
    assert "no textual inversion" in store.skipped([8])["other"]
    assert "[8] values wide" in store.skipped([12])["plain"]
    assert store.usable([8])["plain"].count == 3
    (tmp_path / "plain.safetensors").unlink()
    store.refresh()
    assert "plain" not in store.usable([8])
