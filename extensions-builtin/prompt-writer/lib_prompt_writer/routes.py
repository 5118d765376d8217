"""Writing over HTTP."""

import asyncio
import secrets

from fastapi import APIRouter, Request
from pydantic import BaseModel, Field

from lib_prompt_writer.work import spec
from modules.api.access.auth import user_of
from modules.api.generation.generation import wait_for
from modules.api.schema.documentation import documented
from modules.api.schema.schemas import Tolerant
from modules.prompting.writing import WriteOptions
from modules.scripts.script_callbacks import open_to
from modules.services import Services

NO_WORDS = "There are no words to write a prompt from: type some into the prompt first."
MAX_SEED = 2**32


class WriteBody(Tolerant):
    """POST /featherweight/v1/write."""

    prompt: str = Field(examples=["a fox in the snow"])
    seed: int = Field(default=-1, description="-1: a random one, which the reply has")
    max_tokens: int = 300
    temperature: float = Field(default=0.7, description="0: always the likeliest token")
    top_p: float = 0.9
    top_k: int = 20

    def options(self) -> WriteOptions:
        """Return the options, with a seed."""
        seed = secrets.randbelow(MAX_SEED) if self.seed == -1 else self.seed
        return WriteOptions(self.max_tokens, self.temperature, self.top_p, self.top_k, seed)


class WriteReply(BaseModel):
    """A prompt, what it was written from and by, and both as `alwayson_scripts: {"Write": {"args": [record]}}` takes
    them. `is_whole`: False where it was cut off at `max_tokens`."""

    text: str
    written_from: str
    by: str
    seed: int
    is_whole: bool
    record: str


def write_routes(services: Services) -> APIRouter:
    """POST /featherweight/v1/write."""
    routes = APIRouter(prefix="/featherweight/v1", tags=["generation"])

    @routes.post("/write", **documented(errors={422: NO_WORDS}))
    @open_to("user")
    async def write(body: WriteBody, request: Request) -> WriteReply:
        """Write a longer prompt from a shorter one, with the language model of the chosen checkpoint. It waits its turn
        in the queue; a client that goes away stops it."""
        work = spec(services, body.prompt, body.options(), user=user_of(request))
        task = await asyncio.to_thread(services.queue.submit_spec, work)
        await wait_for(task, request, services.queue)
        found = dict(task.result())
        return WriteReply(written_from=found.pop("from"), **found)

    return routes
