"""What the vision tower of a text encoder takes while it looks, and how fast and small a text encoder writes.

Run `python -m benchmarks.seeing [--tokens N] [--files FOLDER] [--rows look|write]`. Random weights, written into a
temporary folder or kept in FOLDER: a tower of Qwen2.5-VL's full size (0.63 B), and a language model of its architecture
in a middle size (24 layers, 1024 wide, 0.66 B with its head). Every row is a process of its own. Memory is what only
the process has (RssAnon), and that with the pages of files that it maps, beyond what it had before: for the tower while
it looks at an image of 384 x 384, for writing from before the encoder is loaded. The peer is `generate` of transformers
in bf16 on the same weights; each row's tokens are timed behind the first. Linux only.
"""

import json
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.report import machine, print_table, write_result

ROOT = Path(__file__).parent.parent
WORDS = "a fox in the snow, early morning"
TEXT = {
    "vocab_size": 151_936,
    "hidden_size": 1024,
    "intermediate_size": 4096,
    "num_hidden_layers": 24,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1_000_000.0, "mrope_section": [16, 24, 24]},
}
TOWER = {"depth": 32, "hidden_size": 1280, "intermediate_size": 3420, "num_heads": 16, "out_hidden_size": 1024}
INT8 = {"fp8_storage": "Enable", "fp8_format": "int8_row"}
SETTINGS: dict[str, dict[str, object]] = {
    "whole": {"stream_weights": "Off"},
    "whole, int8": {"stream_weights": "Off", **INT8},
    "streamed": {"stream_weights": "Layers"},
    "streamed, int8": {"stream_weights": "Layers", **INT8},
}
PEER = "transformers, bf16"


def held() -> tuple[int, int]:
    """The memory that only this process has, and with the pages of files that it has mapped."""
    lines = Path("/proc/self/status").read_text("ascii").splitlines()
    own, mapped = (
        next(int(line.split()[1]) * 1024 for line in lines if line.startswith(name)) for name in ("RssAnon", "RssFile")
    )
    return own, own + mapped


def peak_of(run: Callable[[], Any]) -> tuple[Any, dict[str, int]]:
    """The result of a function, and the most memory beyond what there was before, in MB, a reading every 5 ms."""
    before, over, peak = held(), threading.Event(), [0, 0]

    def read() -> None:
        peak[:] = [max(most, now - then) for most, now, then in zip(peak, held(), before, strict=True)]

    def watch() -> None:
        while not over.wait(0.005):
            read()

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        found = run()
    finally:
        over.set()
        thread.join()
    read()
    return found, {"own_mb": round(peak[0] / 1e6), "with_mapped_mb": round(peak[1] / 1e6)}


def write_files(root: Path) -> None:
    """Write the models."""
    import torch
    from diffusers import AutoencoderKLQwenImage, QwenImageTransformer2DModel
    from safetensors.torch import save_file
    from transformers import Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration

    torch.manual_seed(1)
    config = Qwen2_5_VLConfig(text_config=dict(TEXT), vision_config=dict(TOWER), tie_word_embeddings=False)
    encoder = Qwen2_5_VLForConditionalGeneration(config).to(torch.bfloat16)
    encoder.save_pretrained(root / "peer")
    state = {key.removeprefix("model."): tensor for key, tensor in encoder.state_dict().items()}
    named = {key.replace("language_model.", "model.", 1): tensor.contiguous() for key, tensor in state.items()}
    width = int(TEXT["hidden_size"])  # type: ignore[call-overload]
    denoiser = QwenImageTransformer2DModel(num_layers=1, num_attention_heads=2, joint_attention_dim=width)
    vae = AutoencoderKLQwenImage(base_dim=16, z_dim=16, dim_mult=[1, 2, 2, 2], num_res_blocks=1)
    for folder, name, tensors in (
        ("text_encoder", "qwen_2.5_vl_7b", named),
        ("Stable-diffusion", "qwen-image-edit", denoiser.to(torch.bfloat16).state_dict()),
        ("VAE", "vae", vae.to(torch.bfloat16).state_dict()),
    ):
        (root / folder).mkdir(parents=True, exist_ok=True)
        save_file({key: each.contiguous() for key, each in tensors.items()}, root / folder / f"{name}.safetensors")


def engine_of(root: Path) -> Any:
    """The program's engine over these files, on the CPU."""
    from modules.flags.flags import Flags
    from modules.models.files.catalogue import CheckpointCatalogue, HashCache
    from modules.models.files.modules_catalogue import ModuleCatalogue
    from modules.processing.engine.engine import Engine, ExtraModels
    from modules.processing.engine.precision import machine_of

    catalogue = CheckpointCatalogue([root / "Stable-diffusion"], HashCache(root / "hashes.json"))
    models = ExtraModels(modules=ModuleCatalogue([root / "text_encoder", root / "VAE"]))
    flags = Flags(use_cpu=("all",), skip_torch_cuda_test=True)
    machine = machine_of(flags, root / "offload", root)
    return Engine(catalogue, ROOT / "configs", lambda: machine, models=models)


def look(root: Path, name: str) -> dict[str, Any]:
    """What the tower takes."""
    from PIL import Image

    from modules.models.loading.encoder_parts import Tower
    from modules.processing.engine.precision import PrecisionOptions
    from modules.settings.values import Settings

    model = engine_of(root).model(None, PrecisionOptions.of(Settings().with_changes(SETTINGS[name])))
    began = time.perf_counter()
    _, peak = peak_of(lambda: Tower(model).see([Image.radial_gradient("L").resize((384, 384)).convert("RGB")]))
    return {"row": name, **peak, "seconds": round(time.perf_counter() - began, 1)}


def write(root: Path, name: str, count: int) -> dict[str, Any]:
    """How fast and small a text encoder writes."""
    times: list[float] = []
    if name == PEER:
        import torch
        from transformers import Qwen2_5_VLForConditionalGeneration

        def run() -> Any:
            model: Any = Qwen2_5_VLForConditionalGeneration.from_pretrained(root / "peer", dtype=torch.bfloat16)
            del model.model.visual
            ids = torch.arange(100, 220)[None]
            for most in (1, count):
                times.append(time.perf_counter())
                model.generate(
                    ids,
                    attention_mask=torch.ones_like(ids),
                    max_new_tokens=most,
                    min_new_tokens=most,
                    do_sample=False,
                    pad_token_id=151_643,
                )
            times.append(time.perf_counter())

        _, peak = peak_of(run)
        rate = (count - 1) / max((times[2] - times[1]) - (times[1] - times[0]), 1e-9)
        return {"row": name, **peak, "tokens_per_s": round(rate, 2)}
    from modules.models.libraries import import_libraries, library_name
    from modules.processing.engine.writing import write_prompt
    from modules.prompting.writing import WriteOptions
    from modules.settings.values import Settings

    import_libraries()  # as the peer's are imported already
    library_name("transformers.Qwen2Model"), library_name("diffusers.QwenImageTransformer2DModel")
    library_name("diffusers.AutoencoderKLQwenImage")
    engine, settings = engine_of(root), Settings().with_changes(SETTINGS[name])
    options = WriteOptions(max_tokens=count, temperature=0.0)

    def on_token(done: int, most: int) -> None:
        times.append(time.perf_counter())

    written, peak = peak_of(lambda: write_prompt(engine, WORDS, settings, options, on_token))
    assert not written.is_whole, "the answer ended early"
    rate = (len(times) - 1) / (times[-1] - times[0])
    return {"row": name, **peak, "tokens_per_s": round(rate, 2)}


def main() -> None:
    """Every row in a process of its own."""
    arguments = sys.argv[1:]
    given = dict(zip(arguments[::2], arguments[1::2], strict=True))
    count = int(given.get("--tokens", "24"))
    if "--row" in given:
        kind, name, root = json.loads(given["--row"])
        print(json.dumps(look(Path(root), name) if kind == "look" else write(Path(root), name, count)))
        return
    with tempfile.TemporaryDirectory() as folder:
        root = Path(given.get("--files", folder))
        if not (root / "VAE").is_dir():
            write_files(root)
        found: dict[str, list[dict[str, Any]]] = {"look": [], "write": []}
        for kind, names in (("look", list(SETTINGS)), ("write", [PEER, *SETTINGS])):
            for name in names if given.get("--rows", kind) == kind else ():
                row = json.dumps([kind, name, str(root)])
                command = [sys.executable, "-m", "benchmarks.seeing", "--row", row, "--tokens", str(count)]
                said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
                found[kind].append(json.loads(said.splitlines()[-1]))
                print_table(list(found[kind][-1]), [list(found[kind][-1].values())])
    write_result("seeing", {"machine": machine(), "tokens": count, **found})


if __name__ == "__main__":
    main()
