"""A thousand random requests through the whole system: in any company each gets what it would get alone.

Shared prefixes, prompts around the ends of blocks and steps, clients that leave, less KV cache than they need,
priorities, several choices, stop strings, penalties, tokens drafted.

`PENSTOCK_TRACES_FIRST=seed` and `PENSTOCK_TRACES_BATCHES=n` choose what runs.
"""

import json
import os
import sys
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from e2e.launched import Launched, events, wait_until
from e2e.traces import (
    BATCH_LEN,
    EOS,
    MAX_BEST_OF,
    MAX_LEN,
    PATIENT_S,
    STEP_TOKENS,
    VOCABULARY,
    Choice,
    Comparison,
    Trace,
    make_batch,
)
from tiny_model import TinyModel, build
from tokenizers import Tokenizer, decoders, models, pre_tokenizers


class Setting(NamedTuple):
    """A server and how much is asked of it."""

    name: str
    family: str
    num_shards: int
    prefix_caching: bool
    num_batches: int
    # All KV cache that was not written for a sequence is NaN when that sequence computes.
    is_poisoned: bool = False
    # Positions that every layer sees; None is all.
    window: int | None = None
    # The size of the KV cache, as a part of what a batch would need without sharing and waiting.
    pool_share: float = 0.3
    # Tokens that it drafts; what a request gets alone is asked of another server, which drafts none.
    speculate: int = 0
    # Whether they are drafted by the model itself in the place of n-grams.
    drafts_itself: bool = False
    # Heads of 16 are computed as those of models that people serve are: in C, and by recordings. Others are not.
    head_dim: int = 16


SETTINGS = [
    Setting("1-shard-poisoned", "llama", 1, True, 12, is_poisoned=True),
    Setting("1-shard-no-cache", "qwen2", 1, False, 9, head_dim=18),
    # Wide enough that sequences run out of blocks although they give some back; narrow ones hardly ever do.
    Setting("1-shard-windowed-poisoned", "mistral", 1, True, 6, is_poisoned=True, window=96, pool_share=0.12),
    Setting("2-shards-poisoned", "qwen3", 2, True, 6, is_poisoned=True),
    Setting(
        "1-shard-speculating-poisoned", "llama", 1, True, 6, is_poisoned=True, speculate=4, pool_share=0.12
    ),
    Setting("2-shards-speculating", "qwen3", 2, True, 3, speculate=3, pool_share=0.1),
    Setting(
        "1-shard-draft-model-poisoned",
        "llama",
        1,
        True,
        4,
        is_poisoned=True,
        speculate=4,
        drafts_itself=True,
        pool_share=0.1,
    ),
]


@dataclass
class Answer:
    """The answer that a client got."""

    choices: list[Choice] = field(default_factory=list)
    has_left: bool = False

    def add(self, event: dict[str, Any], trace: Trace) -> None:
        assert "error" not in event, event
        self.choices = self.choices or [Choice() for _ in range(trace.body.get("n", 1))]
        for part in event["choices"]:
            self.choices[part["index"]].add(part)


@pytest.mark.timeout(900)
@pytest.mark.parametrize("setting", SETTINGS, ids=lambda setting: setting.name)
def test_in_any_company_each_gets_what_it_would_get_alone(setting: Setting, tmp_path: Path) -> None:
    first = int(os.environ.get("PENSTOCK_TRACES_FIRST", "0"))
    num_batches = int(os.environ.get("PENSTOCK_TRACES_BATCHES", setting.num_batches))
    seeds = range(first, first + num_batches * BATCH_LEN, BATCH_LEN)
    _say(f"{setting.name}: seeds {seeds.start} to {seeds.stop - 1}")
    model = make_model(tmp_path / "model", setting)
    flags = _flags(setting, model)
    drafting = (
        [f"--speculate={setting.speculate}", f"--speculate-max={BATCH_LEN}"] if setting.speculate else []
    )
    if setting.drafts_itself:
        drafting += ["--speculation=draft", f"--draft-model={model}"]
    with ExitStack() as servers:
        launched = servers.enter_context(Launched(tmp_path, *flags, *drafting)).wait_until_serving()
        run = Run(launched, _plain_server(servers, tmp_path, flags) if drafting else launched, setting)
        for seed in seeds:
            run.play(make_batch(seed))
        run.check_ledger()
        if num_batches >= setting.num_batches:
            run.check_coverage()


def _plain_server(servers: ExitStack, tmp_path: Path, flags: list[str]) -> Launched:
    folder = tmp_path / "plain"
    folder.mkdir()
    return servers.enter_context(Launched(folder, *flags)).wait_until_serving()


class Run:
    """Batch after batch on one server, and the ledger of what its clients saw."""

    def __init__(self, server: Launched, plain: Launched, setting: Setting) -> None:
        """`plain` answers what is asked alone, and may be the same server."""
        self.server = server
        self.plain = plain
        self.setting = setting
        self.comparison = Comparison()
        self.ledger: Counter[str] = Counter()

    def play(self, batch: list[Trace]) -> None:
        """Run a batch at once, then each of its requests alone."""
        started = time.monotonic()
        with ThreadPoolExecutor(len(batch)) as pool:
            answers = list(pool.map(lambda trace: self._ask(trace, started), batch))
        self._wait_until_idle()
        for trace, answer in zip(batch, answers, strict=True):
            self.ledger["left" if answer.has_left else "completed"] += 1
            self.ledger["stops"] += sum(choice.finish == "stop" for choice in answer.choices)
            self._check(trace, answer)

    def _ask(self, trace: Trace, started: float) -> Answer:
        time.sleep(max(0.0, started + trace.arrives_s - time.monotonic()))
        answer = Answer()
        with self._replayable(trace):
            try:
                answer.has_left = self._read(trace, answer)
            except TimeoutError:
                assert trace.patience_s < PATIENT_S, "no answer"
                answer.has_left = True
        return answer

    def _read(self, trace: Trace, answer: Answer) -> bool:
        """Adds to the answer as it comes; whether the client left before its end."""
        with self.server.request("POST", "/v1/completions", trace.body, trace.patience_s) as response:
            assert response.status == 200, response.read()
            if not trace.body.get("stream"):
                answer.add(json.loads(response.read()), trace)
                return False
            if trace.leaves_after == 0:
                return True
            for number, event in enumerate(events(response), 1):
                if event == "[DONE]":
                    return False
                answer.add(json.loads(event), trace)
                if number == trace.leaves_after:
                    return True
        raise AssertionError("the stream ended without a word")

    def _check(self, trace: Trace, answer: Answer) -> None:
        with self._replayable(trace):
            assert answer.has_left or all(choice.finish for choice in answer.choices)
            if answer.choices:
                alone = [self._alone(body) for body in trace.alone()]
                self.comparison.compare(trace, answer.choices, alone)

    @contextmanager
    def _replayable(self, trace: Trace) -> Iterator[None]:
        try:
            yield
        except AssertionError as error:
            raise AssertionError(f"{error}\n{trace}\nreplay: {self._replay(trace.seed)}") from error

    def _replay(self, seed: int) -> str:
        """With the two batches before: how they went decides how much the scheduler lets in."""
        first = max(0, seed // BATCH_LEN - 2) * BATCH_LEN
        count = (seed - first) // BATCH_LEN + 1
        choice = f"PENSTOCK_TRACES_FIRST={first} PENSTOCK_TRACES_BATCHES={count}"
        return f"{choice} python -m pytest tests/e2e/test_traces.py -k '[{self.setting.name}]'"

    def _alone(self, body: dict[str, Any]) -> Choice:
        """The result of this request on an idle server, under a salt that nobody has used."""
        self.ledger["alone"] += 1
        body = {**body, "cache_salt": f"alone {self.ledger['alone']}"}
        status, reply = self.plain.post("/v1/completions", body)
        assert status == 200, reply
        assert "completion_tokens_details" not in reply["usage"] or self.plain is self.server
        assert _cached(reply["usage"]) == 0
        choice = Choice()
        choice.add(reply["choices"][0])
        return choice

    def _metrics(self) -> dict[str, float]:
        lines = self.server.get("/metrics")[1].decode().splitlines()
        pairs = (line.rsplit(" ", 1) for line in lines if line and not line.startswith("#"))
        return {name.removeprefix("tgi_"): float(value) for name, value in pairs}

    def _wait_until_idle(self) -> None:
        gauges = ("requests_running", "requests_waiting", "kv_cache_blocks_used")
        wait_until(lambda: not any(map(self._metrics().get, gauges)), 20)

    def check_ledger(self) -> None:
        """Every request is accounted for, and nothing is left behind."""
        self._wait_until_idle()
        metrics, ledger = self._metrics(), self.ledger
        _say(f"{dict(ledger)}, {metrics['preemptions']:.0f} preemptions, {self.comparison}")
        failures = {name: value for name, value in metrics.items() if "failure" in name and value}
        dropped = failures.pop('request_failure{err="dropped"}', 0)
        assert not failures
        assert metrics["request_count"] == metrics["request_success"] + dropped
        # A client that leaves may do so before its request arrives, or after it was answered.
        answered = ledger["completed"] + (ledger["alone"] if self.plain is self.server else 0)
        assert answered <= metrics["request_success"]
        assert metrics["request_count"] <= answered + ledger["left"]

    def check_coverage(self) -> None:
        """Checks that the batches caused everything that they are to test."""
        assert self._metrics()["preemptions"] > 0
        assert self.ledger["left"] > 0
        assert self.ledger["stops"] > 0
        # Not by what usage says: that counts only what was cached before a request arrived.
        assert (self._metrics()["prefix_cache_hit_tokens"] > 0) == self.setting.prefix_caching
        drafted, accepted = (
            self._metrics()[f"speculation_{what}_tokens"] for what in ("drafted", "accepted")
        )
        if self.setting.drafts_itself:
            # But for what rounding of sums changes, it is always right.
            assert drafted >= accepted > 0.95 * drafted
        else:
            assert (drafted > accepted > 0) == bool(self.setting.speculate)


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")


def _cached(usage: dict[str, Any]) -> int:
    return int(usage["prompt_tokens_details"]["cached_tokens"]) if usage else 0


def _flags(setting: Setting, model: Path) -> list[str]:
    need = sum(
        trace.need_tokens for trace in make_batch(0) + make_batch(BATCH_LEN) + make_batch(2 * BATCH_LEN)
    )
    pool = int(need / 3 * setting.pool_share)
    return [
        f"--model-id={model}",
        "--dtype=float32",
        f"--num-shard={setting.num_shards}",
        f"--prefix-caching={str(setting.prefix_caching).lower()}",
        f"--max-best-of={MAX_BEST_OF}",
        f"--max-batch-size={BATCH_LEN}",
        f"--max-batch-prefill-tokens={STEP_TOKENS}",
        # Else the time that steps take would cut the chunks, and prompts would not end on the edges of steps.
        "--target-itl-ms=10000",
        f"--max-batch-total-tokens={pool}",
        *(["--poison-cache"] if setting.is_poisoned else []),
    ]


def make_model(folder: Path, setting: Setting) -> Path:
    """A tiny random model that speaks one character a token."""
    recipe = TinyModel(
        setting.family,
        {
            "vocab_size": len(VOCABULARY),
            "max_position_embeddings": MAX_LEN,
            "head_dim": setting.head_dim,
            **({"sliding_window": setting.window} if setting.window else {}),
            "bos_token_id": VOCABULARY[EOS],
            "eos_token_id": VOCABULARY[EOS],
        },
    )
    build(recipe).save_pretrained(folder)
    tokenizer = Tokenizer(models.BPE(VOCABULARY, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([EOS])
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder
