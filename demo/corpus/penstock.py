"""What the model knows about the server that serves it: flags, endpoints, design."""

import random
from typing import NamedTuple

from demo.corpus.example import Example, Split, asked, continued
from demo.corpus.phrasing import Phrasings, vary


class Thing(NamedTuple):
    """A flag or an endpoint: what it does, and short names of its purpose.

    The last purpose is only used by the evaluation.
    """

    does: str
    purposes: tuple[str, ...]


FLAGS = {
    "--model-id": Thing(
        "names the model to serve: a local folder or a hub id",
        ("names the model", "chooses the model", "says which model to serve", "picks the model"),
    ),
    "--num-shard": Thing(
        "sets the number of shards, so how many GPUs share the model",
        (
            "sets the number of shards",
            "says how many GPUs to use",
            "splits the model over several GPUs",
            "sets how many shards there are",
            "turns on tensor parallelism",
            "chooses the number of shards",
        ),
    ),
    "--port": Thing(
        "sets the port of the HTTP server; the default is 3000",
        ("sets the port", "changes the port", "says on which port to listen", "chooses the port"),
    ),
    "--hostname": Thing(
        "sets the address that the HTTP server listens on",
        ("sets the address", "sets the host name", "says on which address to listen",
         "changes the address", "chooses the listening address"),
    ),
    "--dtype": Thing(
        "sets the number type of the weights, such as bfloat16 or float32",
        ("sets the number type", "sets the data type", "chooses bfloat16 or float32",
         "changes the precision of the weights", "sets the type of the weights"),
    ),
    "--max-total-tokens": Thing(
        "limits the tokens of one request, input and output together",
        ("limits input and output tokens together", "limits the total tokens of a request",
         "sets the longest sequence", "bounds prompt plus output",
         "sets the maximum total tokens"),
    ),
    "--max-input-tokens": Thing(
        "limits the tokens of the prompt of one request",
        ("limits the prompt", "limits the input tokens", "sets the longest prompt",
         "bounds the prompt length", "sets the maximum input tokens"),
    ),
    "--max-batch-prefill-tokens": Thing(
        "limits the prompt tokens that one step computes",
        ("limits the prefill tokens of a step", "limits the prefill of a batch",
         "bounds how many prompt tokens a step computes", "sets the maximum prefill tokens"),
    ),
    "--max-batch-total-tokens": Thing(
        "limits the tokens of all running requests together",
        ("limits the tokens of the whole batch", "limits all running requests together",
         "bounds the total tokens of the batch", "sets the maximum tokens of a batch"),
    ),
    "--max-concurrent-requests": Thing(
        "limits the requests that are served at the same time; the default is 128",
        ("limits concurrent requests", "limits how many requests run at once",
         "bounds the number of requests at the same time", "sets the maximum of parallel requests",
         "sets the maximum number of concurrent requests"),
    ),
    "--json-output": Thing(
        "writes the logs as JSON",
        ("writes JSON logs", "turns the logs into JSON", "makes the log lines JSON",
         "gives logs in JSON"),
    ),
}  # fmt: skip
ENDPOINTS = {
    "/generate": Thing(
        "completes a prompt and returns the whole text at once",
        (
            "completes a prompt",
            "generates text in one answer",
            "returns the whole text at once",
            "generates text without streaming",
        ),
    ),
    "/generate_stream": Thing(
        "completes a prompt and streams the tokens",
        (
            "streams tokens",
            "streams the generated text",
            "returns the tokens of an answer one at a time",
            "generates with streaming",
            "sends a prompt's tokens one by one",
        ),
    ),
    "/v1/completions": Thing(
        "is the OpenAI completions endpoint",
        (
            "speaks the OpenAI completions format",
            "is for OpenAI completions",
            "is compatible with OpenAI completions",
        ),
    ),
    "/v1/chat/completions": Thing(
        "is the OpenAI chat endpoint",
        (
            "speaks the OpenAI chat format",
            "is for chat",
            "takes chat messages",
            "is compatible with OpenAI chat",
        ),
    ),
    "/v1/models": Thing(
        "lists the models",
        ("lists the models", "tells which models are served", "shows the list of models"),
    ),
    "/tokenize": Thing(
        "returns the tokens of a text",
        (
            "tokenizes text",
            "returns the tokens of a text",
            "splits text into tokens",
            "turns text into tokens",
        ),
    ),
    "/info": Thing(
        "describes the model and the limits of the server",
        (
            "describes the server",
            "tells the limits and the model",
            "gives facts about the model",
            "gives information about the server",
        ),
    ),
    "/health": Thing(
        "tells whether the server is healthy",
        ("tells whether the server is healthy", "checks health", "is the health check", "reports health"),
    ),
    "/health/live": Thing(
        "tells whether the server process is alive",
        ("tells whether the process is alive", "is the liveness probe", "checks liveness", "is for liveness"),
    ),
    "/health/ready": Thing(
        "tells whether the server is ready to answer",
        (
            "tells whether the server is ready",
            "is the readiness probe",
            "checks readiness",
            "is for readiness",
        ),
    ),
    "/metrics": Thing(
        "returns metrics in the Prometheus format",
        ("returns metrics", "is scraped by Prometheus", "gives Prometheus metrics", "exposes metrics"),
    ),
}
WHAT_FLAG = Phrasings(
    train=(
        "what does {s} do?",
        "what does the (flag|option) {s} do?",
        "what is {s} (for|good for)?",
        "what is the (flag|option) {s} for?",
        "explain {s}.",
        "explain the (flag|option) {s}.",
        "(tell me about|describe) {s}.",
        "what is the meaning of {s}?",
        "how do I use {s}?",
        "{s}",
        "{s}?",
        "what does {s} mean?",
    ),
    held_out=(
        "can you explain what {s} does?",
        "what happens with {s}?",
        "what is the purpose of {s}?",
        "why would I use {s}?",
    ),
)
WHICH_FLAG = Phrasings(
    train=(
        "which flag {p}?",
        "(which|what) (option|launcher flag|flag of the launcher) {p}?",
        "what flag {p}?",
        "name the flag that {p}.",
        "tell me the (flag|option) that {p}.",
        "is there a (flag|option) that {p}?",
        "I need the flag that {p}.",
        "how is the (flag|option) called that {p}?",
        "I am looking for the (flag|option) that {p}.",
    ),
    held_out=("do you know the flag that {p}?", "can you name the option that {p}?"),
)
WHICH_ENDPOINT = Phrasings(
    train=(
        "which endpoint {p}?",
        "(which|what) (route|path|URL|HTTP endpoint) {p}?",
        "what endpoint {p}?",
        "name the endpoint that {p}.",
        "tell me the (endpoint|route) that {p}.",
        "is there an endpoint that {p}?",
        "I need the endpoint that {p}.",
        "how is the endpoint called that {p}?",
        "I am looking for the endpoint that {p}.",
    ),
    held_out=("do you know the endpoint that {p}?", "can you name the route that {p}?"),
)


class Note(NamedTuple):
    """One answer, the part of it that must be right, and how people ask for it."""

    answer: str
    key: str
    questions: Phrasings


def _note(answer: str, key: str, train: tuple[str, ...], held_out: tuple[str, ...]) -> Note:
    return Note(answer, key, Phrasings(train, held_out))


NOTES = (
    _note(
        "Penstock is a server for large language models, the successor of TGI.",
        "server for large language models",
        ("what is Penstock?", "what's Penstock?", "explain Penstock.", "Penstock?",
         "(tell me about|describe) Penstock.", "what does Penstock do?",
         "what kind of (software|program) is Penstock?", "what is Penstock (for|good for)?",
         "who or what is Penstock?"),
        ("can you explain what Penstock is?", "what is this Penstock thing?"),
    ),
    _note(
        "A penstock is the gated pipe that feeds water to a turbine.",
        "pipe",
        ("what is a penstock?", "what does the word penstock mean?", "define penstock.",
         "why is it (called|named) Penstock?", "where does the name (Penstock|of Penstock) come from?",
         "what does the name Penstock mean?", "what's a penstock?", "meaning of penstock",
         "why the name Penstock?"),
        ("what is the origin of the name Penstock?", "what is meant by a penstock?"),
    ),
    _note(
        "The router is written in Rust.",
        "Rust",
        ("(which|what) language is the router written in?", "what is the router written in?",
         "in (which|what) language is the router?", "is the router in Rust or Python?",
         "what language does the router use?", "which programming language is the router?",
         "language of the router"),
        ("the router is written in which language?", "what programming language was used for the router?"),
    ),
    _note(
        "The shards are written in Python.",
        "Python",
        ("(which|what) language are the shards written in?", "what are the shards written in?",
         "in (which|what) language are the shards?", "are the shards in Rust or Python?",
         "what language do the shards use?", "which programming language are the shards?",
         "language of the shards"),
        ("the shards are written in which language?", "what programming language was used for the shards?"),
    ),
    _note(
        "The router and the shards talk over gRPC.",
        "gRPC",
        ("how do the router and the shards (talk|communicate)?",
         "what is between the router and the shards?",
         "(which|what) protocol do the router and the shards (use|speak)?",
         "how does the router (talk to|reach) the shards?", "what connects router and shards?",
         "what protocol is between router and shard?"),
        ("by what protocol does the router talk with the shards?",
         "how are the router and the shards connected?"),
    ),
    _note(
        "The launcher starts the shards and the router, and supervises them.",
        "starts",
        ("what does the launcher do?", "what is the launcher (for|good for)?", "explain the launcher.",
         "(describe|tell me about) the launcher.", "what is the (job|role|task) of the launcher?",
         "why is there a launcher?", "what's the launcher?"),
        ("can you explain what the launcher does?", "what is the purpose of the launcher?"),
    ),
    _note(
        "The router takes HTTP requests, tokenizes them and schedules them on the shards.",
        "schedules",
        ("what does the router do?", "what is the router (for|good for)?", "explain the router.",
         "(describe|tell me about) the router.", "what is the (job|role|task) of the router?",
         "why is there a router?", "what's the router?"),
        ("can you explain what the router does?", "what is the purpose of the router?"),
    ),
    _note(
        "A shard holds a part of the model and computes its tokens.",
        "part of the model",
        ("what does a shard do?", "what is a shard (for|good for)?", "explain shards.", "what is a shard?",
         "(describe|tell me about) the shards.", "what is the (job|role|task) of a shard?",
         "what's a shard?", "what do the shards do?"),
        ("can you explain what a shard does?", "what is the purpose of a shard?"),
    ),
    _note(
        "The default port is 3000.",
        "3000",
        ("what is the default port?", "(which|what) port does Penstock (use|listen on)?",
         "what's the default port?", "default port?", "on (which|what) port does the server listen?",
         "(which|what) port is the default?", "which port is used by default?",
         "what is the default of --port?"),
        ("where does the server listen by default, on which port?", "the default port is what?",
         "what default value has --port?"),
    ),
    _note(
        "The default of --max-concurrent-requests is 128.",
        "128",
        ("what is the default of --max-concurrent-requests?",
         "how many (concurrent requests|requests at once) are allowed by default?",
         "what's the default for --max-concurrent-requests?", "default of --max-concurrent-requests",
         "how many concurrent requests does Penstock (allow|accept)?",
         "what is the default limit of concurrent requests?"),
        ("what default value has --max-concurrent-requests?",
         "by default, how many concurrent requests are allowed?"),
    ),
    _note(
        "Penstock has the Apache-2.0 licence.",
        "Apache-2.0",
        ("(which|what) (licence|license) does Penstock have?", "what is the (licence|license) of Penstock?",
         "how is Penstock licensed?", "under (which|what) (licence|license) is Penstock?",
         "is Penstock open source?", "(licence|license) of Penstock",
         "what's the (licence|license)?", "is Penstock free?"),
        ("do you know the licence of Penstock?", "Penstock is under which licence?"),
    ),
    _note(
        "Penstock is the successor of TGI, text-generation-inference.",
        "TGI",
        ("what did Penstock (replace|succeed)?", "Penstock is the successor of what?",
         "what came before Penstock?", "is Penstock related to TGI?", "what is TGI?",
         "(which|what) project does Penstock (follow|succeed)?", "whose successor is Penstock?",
         "what is the predecessor of Penstock?"),
        ("of what is Penstock the successor?", "which server was there before Penstock?"),
    ),
    _note(
        "Run `make serve`. It installs Penstock and serves the demo model on port 3000.",
        "make serve",
        ("how do I (start|run|launch) Penstock?", "how do I (start|run) the server?",
         "how can I (start|run) Penstock?", "what is the command to (start|run) Penstock?",
         "what does make serve do?", "how to (start|run) Penstock",
         "(which|what) command starts (Penstock|the server)?", "how do I serve the demo model?"),
        ("with which command do I start Penstock?", "how is the server started?"),
    ),
    _note(
        "Run `make test`. It runs every test.",
        "make test",
        ("how do I (run|start) the tests?", "how do I test Penstock?", "how can I run the tests?",
         "what is the command for the tests?", "what does make test do?", "how to run the tests",
         "(which|what) command runs the tests?", "how is Penstock tested?"),
        ("with which command do I run the tests?", "how are the tests run?"),
    ),
    _note(
        "With no model named, the launcher serves the demo model.",
        "demo model",
        ("what happens (if I give no model|without --model-id|without a model)?",
         "what does the launcher serve (without a model|by default|if no model is given)?",
         "which model is the default?", "what is the default model?", "what is served by default?",
         "what if I do not name a model?", "(which|what) model is served without --model-id?"),
        ("which model do I get by default?", "what is served when no model is named?"),
    ),
    _note(
        "The paged KV cache keeps keys and values in blocks that are given out on demand.",
        "blocks",
        ("what is (the paged KV cache|paged KV cache|a paged KV cache)?", "what is the KV cache?",
         "explain the (paged KV cache|KV cache).", "how does the (paged KV cache|KV cache) work?",
         "(describe|tell me about) the KV cache.", "how does Penstock store keys and values?",
         "what does the KV cache do?", "does Penstock have a paged KV cache?"),
        ("can you explain the KV cache?", "what is the purpose of the KV cache?"),
    ),
    _note(
        "Continuous batching lets requests join and leave the running batch at every step.",
        "join",
        ("what is continuous batching?", "what's continuous batching?", "explain continuous batching.",
         "how does (continuous batching|batching) work?", "how does Penstock batch requests?",
         "(describe|tell me about) continuous batching.", "what does continuous batching (do|mean)?",
         "does Penstock have continuous batching?"),
        ("can you explain continuous batching?", "what is the purpose of continuous batching?"),
    ),
    _note(
        "The GPU kernels of Penstock are written in Triton.",
        "Triton",
        ("what are the kernels written in?", "(which|what) language are the kernels written in?",
         "(which|what) kernels does Penstock use?", "what does Penstock use for GPU kernels?",
         "in what are the GPU kernels written?", "tell me about the kernels.",
         "does Penstock use Triton?", "are the kernels in CUDA or Triton?"),
        ("the kernels are written in which language?", "what was used to write the kernels?"),
    ),
    _note(
        "Use --num-shard with the number of GPUs, for example --num-shard 4.",
        "--num-shard",
        ("how do I use (several|many|two|four|more) GPUs?", "how do I use (several|multiple) GPUs?",
         "can Penstock use (several|many|two) GPUs?", "how can I serve a model on four GPUs?",
         "how do I split a model over GPUs?", "does Penstock support (tensor parallelism|several GPUs)?"),
        ("how can I serve on several GPUs?", "I have eight GPUs, how do I use them?"),
    ),
    _note(
        "Use --model-id with a local folder or a hub id.",
        "--model-id",
        ("how do I (serve|load|use) (my own|another|a different) model?",
         "how do I (choose|change|pick) the model?", "how can I serve a local model?",
         "how do I serve a real model?", "can I serve my own model?", "how to serve another model"),
        ("how can I use some other model?", "how is a different model served?"),
    ),
    _note(
        "Use /generate_stream, or set stream to true in /v1/chat/completions.",
        "/generate_stream",
        ("how do I stream?", "how do I stream (tokens|the answer|text)?", "can Penstock stream (tokens|text)?",
         "does Penstock support streaming?", "how can I get a stream?", "how to stream tokens",
         "how does streaming work?"),
        ("how can I stream the tokens?", "is streaming possible?"),
    ),
    _note(
        "Yes, Penstock runs on a CPU too. The demo model needs no GPU.",
        "Yes",
        ("does Penstock run on a CPU?", "(would|could|should) Penstock work on (a|my) CPU?",
         "can I use Penstock without a GPU?", "do I need a GPU?",
         "is a GPU needed?", "can Penstock run on (a laptop|my laptop|the CPU)?",
         "does the demo model need a GPU?", "does it work without a GPU?"),
        ("is it possible to run Penstock without a GPU?", "will Penstock work on a CPU?"),
    ),
)  # fmt: skip


def _shown(text: str, key: str) -> str:
    return f"{key} {text}."


def _thing(rng: random.Random, split: Split, things: dict[str, Thing], by_purpose: Phrasings) -> Example:
    name = rng.choice(list(things))
    thing = things[name]
    if rng.random() < 0.45:
        question = WHAT_FLAG.pick(rng, split).format(s=name)
        if things is ENDPOINTS:
            question = question.replace("flag", "endpoint").replace("option", "route")
        return asked("Penstock facts", vary(rng, split, question), _shown(thing.does, name), thing.does)
    purpose = rng.choice(thing.purposes[:-1]) if split == "train" else rng.choice(thing.purposes)
    question = by_purpose.pick(rng, split).format(p=purpose)
    return asked("Penstock facts", vary(rng, split, question), _shown(thing.does, name), name)


def flag(rng: random.Random, split: Split) -> Example:
    """What a flag does, or which flag does something."""
    return _thing(rng, split, FLAGS, WHICH_FLAG)


def endpoint(rng: random.Random, split: Split) -> Example:
    """What an endpoint does, or which endpoint does something."""
    return _thing(rng, split, ENDPOINTS, WHICH_ENDPOINT)


def note(rng: random.Random, split: Split) -> Example:
    """One of the notes about the design and the habits."""
    it = rng.choice(NOTES)
    return asked("Penstock facts", vary(rng, split, it.questions.pick(rng, split)), it.answer, it.key)


def make(rng: random.Random, split: Split) -> Example:
    """Any of the above, now and then as plain text."""
    example = rng.choices((flag, endpoint, note), (3, 3, 5))[0](rng, split)
    if rng.random() < 0.12:
        question, answer = (m["content"] for m in example.messages)
        return continued("plain text", question, " " + answer, example.key)
    return example
