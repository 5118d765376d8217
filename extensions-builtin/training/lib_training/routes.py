"""Training over HTTP: ours as tasks, and what the reference UI has for embeddings. Hypernetworks are refused."""

import asyncio
from collections.abc import Mapping
from typing import Any

from fastapi import APIRouter, Request
from pydantic import ConfigDict, Field

from lib_training.config import TrainingConfig, config_of
from lib_training.presets import count_images, is_small, preset_config
from lib_training.work import TrainingWork
from modules.access.roles import Role, open_to
from modules.api.generation.generation import wait_for
from modules.api.program.tasks import task_reply
from modules.api.schema.documentation import documented
from modules.api.schema.reply_models import Reply, TaskItem
from modules.api.schema.schemas import Tolerant
from modules.errors import InvalidValueError
from modules.models.files.catalogue import CheckpointInfo
from modules.processing.engine.chosen_checkpoint import stored_checkpoint
from modules.services import Services

HYPERNETWORKS = (
    "Hypernetworks are not trained here: a LoRA learns the same in a hundredth of the size. Train one with "
    "/featherweight/v1/train. Hypernetworks that exist can be used."
)
EXAMPLE: dict[str, Any] = {
    "model": {"checkpoint": "featherweight-scenes.safetensors", "storage": "fp8_e4m3fn_row"},
    "adapter": {"type": "lora", "rank": 8},
    "data": {"folders": ["/images/mystyle"]},
    "training": {"steps": 500},
    "memory": {"budget_gb": 6},
    "output": {"name": "mystyle"},
}


class TrainBody(Tolerant):
    """POST /featherweight/v1/train. With `preset` the sections change what follows from it."""

    model_config = ConfigDict(extra="ignore", json_schema_extra={"example": {"config": EXAMPLE}})

    config: dict[str, Any] = Field(default_factory=dict)
    preset: str | None = None
    folder: str = ""
    name: str = ""
    trigger: str = ""
    budget_gb: float | None = None


class EmbeddingBody(Tolerant):
    """POST /sdapi/v1/create/embedding."""

    model_config = ConfigDict(
        extra="ignore", json_schema_extra={"example": {"name": "mystyle", "num_vectors_per_token": 4}}
    )

    name: str = ""
    num_vectors_per_token: int = Field(1, ge=1, le=75)
    overwrite_old: bool = False
    init_text: str = "*"


class TrainEmbeddingBody(Tolerant):
    """POST /sdapi/v1/train/embedding, by the reference UI's names."""

    model_config = ConfigDict(
        extra="ignore",
        json_schema_extra={"example": {"embedding_name": "mystyle", "data_root": "/images/mystyle", "steps": 500}},
    )

    embedding_name: str = ""
    data_root: str = ""
    learn_rate: float | str = 0.005
    batch_size: int = 1
    gradient_step: int = 1
    steps: int = 1000
    shuffle_tags: bool = False
    tag_drop_out: float = 0.0
    training_width: int | None = None
    use_weight: bool = False
    save_embedding_every: int = 500


class HypernetworkBody(Tolerant):
    """POST /sdapi/v1/create/hypernetwork and train/hypernetwork: whatever is asked."""

    model_config = ConfigDict(extra="ignore", json_schema_extra={"example": {"name": "mystyle"}})


class TrainingInfo(Reply):
    """Outcome in words."""

    info: str = Field(examples=["create embedding filename: embeddings/mystyle.safetensors"])


def training_routes(services: Services) -> APIRouter:
    """The routes that train."""
    routes = APIRouter(tags=["training"])
    work = TrainingWork(services)
    errors = {
        404: "Unknown checkpoint 'gone'.",
        422: "Unknown key adapter.rnk. Did you mean 'rank'? Known: type, rank, alpha.",
    }

    def checkpoint() -> CheckpointInfo:
        wanted = stored_checkpoint(services.settings.current, services.catalogue)
        return services.catalogue.default(wanted.name)

    def with_checkpoint(config: Mapping[str, Any]) -> dict[str, Any]:
        """Sections that name the checkpoint that is chosen, where they name none."""
        model = config.get("model") or {}
        if not isinstance(model, dict):
            raise InvalidValueError(f"config.model is {str(model)[:60]!r}; it takes an object, such as {{}}.")
        return {**config, "model": {"checkpoint": checkpoint().title, **model}}

    @routes.post("/featherweight/v1/train", **documented(errors=errors))
    @open_to(Role.ADMIN)
    def train(body: TrainBody) -> TaskItem:
        """Train an adapter. `config` has the sections of docs/training.md; the task's `outcome` has the curves while it
        runs, and the files at its end. Cancelling the task pauses it: the same request goes on from its last step.
        With `preset` (character, style, concept), `folder` and `name` everything else is chosen."""
        if body.preset is None:
            return task_reply(work.start(config_of(with_checkpoint(body.config))))
        images, base = count_images(body.folder), checkpoint()
        chosen = preset_config(
            *(body.preset, body.folder, body.name, base.title, images, body.trigger, body.budget_gb, body.config),
            small_model=is_small(base.path),
        )
        return task_reply(work.start(chosen))

    @routes.post("/featherweight/v1/train/learning-rate", **documented(errors=errors))
    @open_to(Role.ADMIN)
    def learning_rate(body: TrainBody) -> TaskItem:
        """Twenty steps that say which learning rate fits; the task's `outcome` has it as `rate`."""
        return task_reply(work.find_rate(config_of(with_checkpoint(body.config))))

    @routes.post(
        "/sdapi/v1/create/embedding",
        **documented(errors={422: "There is an embedding x already. Choose another name, or overwrite_old."}),
    )
    @open_to(Role.ADMIN)
    async def new_embedding(body: EmbeddingBody, request: Request) -> TrainingInfo:
        """Write an embedding whose vectors are those of `init_text`, for the checkpoint that is chosen."""
        task = await asyncio.to_thread(
            work.create_embedding, body.name, body.num_vectors_per_token, body.init_text, body.overwrite_old
        )
        await wait_for(task, request, services.queue)
        return TrainingInfo(info=f"create embedding filename: {task.result()['path']}")

    def known(name: str) -> dict[str, Any]:
        """An embedding of that name is gone on with."""
        found = services.models.list_embeddings()
        if name in found["skipped"]:
            raise InvalidValueError(f"The embedding {name} cannot be trained on: {found['skipped'][name]['reason']}")
        return {"start": name, "vectors": found["loaded"][name]["vectors"]} if name in found["loaded"] else {}

    def embedding_config(body: TrainEmbeddingBody) -> TrainingConfig:
        rate = _first_rate(body.learn_rate)
        return config_of(
            {
                "model": {"checkpoint": checkpoint().title},
                "adapter": {"type": "textual_inversion", "token": body.embedding_name, **known(body.embedding_name)},
                "data": {
                    "folders": [body.data_root],
                    "prefix": f"{body.embedding_name}, ",
                    "shuffle_tags": body.shuffle_tags,
                    "tag_dropout": body.tag_drop_out,
                    "resolution": body.training_width,
                },
                "training": {
                    "steps": body.steps,
                    "batch": body.batch_size,
                    "accumulation": body.gradient_step,
                    "learning_rate": rate,
                    "schedule": "constant",
                },
                "output": {"name": body.embedding_name, "save_every": max(body.save_embedding_every, 0)},
            }
        )

    @routes.post("/sdapi/v1/train/embedding", **documented(errors=errors))
    @open_to(Role.ADMIN)
    async def train_embedding(body: TrainEmbeddingBody, request: Request) -> TrainingInfo:
        """Train an embedding, and wait until it is done. Options of the reference UI that mean nothing here are
        ignored; `data_root` holds images with captions in which the embedding's name stands, or gets it put before."""
        if not body.embedding_name:
            raise InvalidValueError("embedding_name is missing: which embedding should be trained?")
        task = await asyncio.to_thread(lambda: work.start(embedding_config(body)))
        await wait_for(task, request, services.queue, stays=True)
        outcome = task.result()
        files = ", ".join(outcome.get("files", []))
        return TrainingInfo(info=f"train embedding complete: filename: {files} error: None")

    @routes.post("/sdapi/v1/create/hypernetwork", **documented(errors={422: HYPERNETWORKS}))
    @open_to(Role.ADMIN)
    def create_hypernetwork(body: HypernetworkBody) -> TrainingInfo:
        """Refused: hypernetworks are not trained here."""
        raise InvalidValueError(HYPERNETWORKS)

    @routes.post("/sdapi/v1/train/hypernetwork", **documented(errors={422: HYPERNETWORKS}))
    @open_to(Role.ADMIN)
    def train_hypernetwork(body: HypernetworkBody) -> TrainingInfo:
        """Refused: hypernetworks are not trained here."""
        raise InvalidValueError(HYPERNETWORKS)

    return routes


def _first_rate(value: float | str) -> float:
    """The reference UI takes "0.005:100, 1e-3"; the first rate counts."""
    text = str(value).split(",")[0].split(":")[0].strip()
    try:
        return float(text)
    except ValueError as error:
        raise InvalidValueError(f"learn_rate is {value!r}; it must be a number such as 0.005.") from error
