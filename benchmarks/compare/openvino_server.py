"""OpenVINO GenAI's continuous batching behind a thin HTTP server: `/health`, and `/v1/completions` of plain text.

Run by the Python of .venv-rivals. One thread steps the pipeline, which computes without the interpreter's lock; tokens
go to the event loop as they come.
"""

import argparse
import asyncio
import json
import os
import queue
import threading
import traceback
from collections.abc import AsyncIterator, Callable
from typing import Any, NamedTuple

import numpy as np
import openvino
import openvino_genai
import uvicorn
from fastapi import FastAPI
from fastapi.responses import JSONResponse, Response, StreamingResponse
from pydantic import BaseModel
from tokenizers import Tokenizer
from tokenizers.decoders import DecodeStream

# Gigabytes of keys and values: more than the comparison's requests need.
_CACHE_GB = 2


class Completion(BaseModel):
    """What the comparison asks for. Outputs are greedy and as long as `max_tokens`."""

    prompt: str
    max_tokens: int
    stream: bool = False


class Request(NamedTuple):
    """A prompt, and where its tokens go; None when there are no more."""

    token_ids: list[int]
    max_tokens: int
    deliver: Callable[[list[int] | None], None]


class Stepper:
    """The thread that owns the pipeline."""

    def __init__(self, pipeline: Any) -> None:
        self._pipeline = pipeline
        self._waiting: queue.SimpleQueue[Request] = queue.SimpleQueue()
        self._running: list[tuple[Any, Request]] = []
        self._num_requests = 0
        threading.Thread(target=self._run, daemon=True).start()

    def submit(self, request: Request) -> None:
        """Called from any thread."""
        self._waiting.put(request)

    def _run(self) -> None:
        try:
            self._serve()
        except Exception:
            traceback.print_exc()
            # Requests would wait for ever.
            os._exit(1)

    def _serve(self) -> None:
        while True:
            if not self._running:
                self._begin(self._waiting.get())
            while not self._waiting.empty():
                self._begin(self._waiting.get())
            self._pipeline.step()
            self._running = [
                (handle, request) for handle, request in self._running if not _read(handle, request)
            ]

    def _begin(self, request: Request) -> None:
        config = openvino_genai.GenerationConfig()
        config.max_new_tokens = request.max_tokens
        # The models name no end; without the number of one it is refused.
        config.set_eos_token_id(0)
        config.ignore_eos = True
        config.do_sample = False
        self._num_requests += 1
        token_ids = openvino.Tensor(np.array([request.token_ids], dtype=np.int64))
        self._running.append((self._pipeline.add_request(self._num_requests, token_ids, config), request))


def _read(handle: Any, request: Request) -> bool:
    """Delivers what is there; whether it is all."""
    while handle.can_read():
        for output in handle.read().values():
            request.deliver(list(output.generated_ids))
    if handle.get_status() == openvino_genai.GenerationStatus.RUNNING:
        return False
    request.deliver(None)
    return True


def application(stepper: Stepper, tokenizer: Tokenizer) -> FastAPI:
    """The routes."""

    async def health() -> JSONResponse:
        return JSONResponse({})

    async def completions(body: Completion) -> Response:
        token_ids = tokenizer.encode(body.prompt, add_special_tokens=False).ids
        if body.stream:
            events = _events(stepper, tokenizer, token_ids, body.max_tokens)
            return StreamingResponse(events, media_type="text/event-stream")
        tokens = [token async for token in _tokens(stepper, token_ids, body.max_tokens)]
        return JSONResponse({"choices": [{"index": 0, "text": tokenizer.decode(tokens)}]})

    app = FastAPI()
    app.add_api_route("/health", health)
    app.add_api_route("/v1/completions", completions, methods=["POST"], response_model=None)
    return app


async def _tokens(stepper: Stepper, token_ids: list[int], max_tokens: int) -> AsyncIterator[int]:
    loop, arrived = asyncio.get_running_loop(), asyncio.Queue[list[int] | None]()

    def deliver(ids: list[int] | None) -> None:
        loop.call_soon_threadsafe(arrived.put_nowait, ids)

    stepper.submit(Request(token_ids, max_tokens, deliver))
    while (ids := await arrived.get()) is not None:
        for token in ids:
            yield token


async def _events(
    stepper: Stepper, tokenizer: Tokenizer, token_ids: list[int], max_tokens: int
) -> AsyncIterator[str]:
    texts, count = DecodeStream(skip_special_tokens=False), 0
    async for token in _tokens(stepper, token_ids, max_tokens):
        count += 1
        yield _event(choices=[_choice(texts.step(tokenizer, token) or "", None)])
    usage = {"prompt_tokens": len(token_ids), "completion_tokens": count}
    yield _event(choices=[_choice("", "length")], usage=usage)
    yield "data: [DONE]\n\n"


def _choice(text: str, finish_reason: str | None) -> dict[str, Any]:
    return {"index": 0, "text": text, "finish_reason": finish_reason}


def _event(**fields: Any) -> str:
    return f"data: {json.dumps({'object': 'text_completion', **fields})}\n\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True, help="a GGUF file")
    parser.add_argument("--tokenizer", required=True, help="its tokenizer.json")
    parser.add_argument(
        "--precision", choices=("f32", "bf16"), required=True, help="of sums and of the cache"
    )
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--host", required=True)
    parser.add_argument("--port", type=int, required=True)
    flags = parser.parse_args()
    scheduler = openvino_genai.SchedulerConfig()
    scheduler.cache_size = _CACHE_GB
    properties = {
        "INFERENCE_PRECISION_HINT": flags.precision,
        "KV_CACHE_PRECISION": flags.precision,
        "INFERENCE_NUM_THREADS": flags.threads,
    }
    pipeline = openvino_genai.ContinuousBatchingPipeline(flags.model, scheduler, "CPU", properties)
    app = application(Stepper(pipeline), Tokenizer.from_file(flags.tokenizer))
    uvicorn.run(app, host=flags.host, port=flags.port, log_level="warning")


if __name__ == "__main__":
    main()
