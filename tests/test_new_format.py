"""A storage format is one row: added to the catalog it is on every edge, and weights can be stored in it."""

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
FOLDERS = os.pathsep.join(str(ROOT / "extensions-builtin" / name) for name in ("training", "workbench"))

SCRIPT = """
import json, sys
from dataclasses import replace
from modules.memory.formats.catalog import FORMAT_SPECS

spec = replace(FORMAT_SPECS.get("int8_row"), name="toy8", label="toy, 8 bits")
FORMAT_SPECS.add("toy8", replace(spec, in_blocks=True, layouts={"comfyui": {}, "gguf": {"file_type": 99}}))

from modules.api.jobs.again import PRECISIONS
from lib_workbench.precision_work import COMPARED, EIGHT_BIT, SAVED
from modules.settings.sections.optimizations import OptimizationSettings
from lib_training.config import ModelConfig
from lib_workbench.precision_tab import FORMAT_LABELS
from lib_workbench import merger_tab
from modules.ui.tabs import history_tab
import gradio as gr

found = {"settings": "toy8" in OptimizationSettings.fp8_format.setting.choices}
found["hint"] = "toy 8 (0.8 %)" in OptimizationSettings.fp8_format.setting.hint
found["API"] = "toy8" in PRECISIONS
found["reports"] = "toy8" in EIGHT_BIT and "toy8" in SAVED and "toy8 + int8 matmul" in COMPARED
found["labels"] = FORMAT_LABELS["toy8"] == "toy, 8 bits" and "toy8 + int8 matmul" in FORMAT_LABELS
found["training"] = ModelConfig(storage="toy8").storage == "toy8"
with gr.Blocks() as page:
    history_tab.build_history_tab()
found["history"] = any("toy, 8 bits" in str(part.get("props", {}).get("value")) for part in page.config["components"])
found["merges"] = ("toy, 8 bits", "toy8") in merger_tab.format_choices()
found["no torch"] = "torch" not in sys.modules

from modules.memory.formats.format import FORMATS
from modules.models.files.gguf_writer import layout_facts
from modules.models.loading.budget import CANDIDATES
from lib_workbench.merging.file_layout import COMFY_FORMATS, FileLayout, check_format
from lib_workbench.comparison.compare import check_storages
from modules.processing.engine.precision import INT8_FORMATS, storage_rules
import torch

found["budget"] = "toy8" in CANDIDATES
found["matmul"] = "toy8" in INT8_FORMATS
found["files"] = "toy8" in COMFY_FORMATS and layout_facts("gguf")["toy8"]["file_type"] == 99
check_format(FileLayout.GGUF, "toy8", False)
check_storages(["toy8", "toy8 + int8 matmul"])
found["rules"] = storage_rules("toy8").storage == "toy8"
found["weights"] = FORMATS.get("toy8").encode(torch.randn(4, 8)).data.dtype is torch.int8
print(json.dumps(found))
"""


def test_a_new_format_is_on_every_edge() -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": FOLDERS},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert [edge for edge, is_there in found.items() if not is_there] == []
