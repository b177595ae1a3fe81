"""Excluded tokens, stop tokens and filling in, through the whole system: two ranks, streams, choices, a lost shard."""

import json
import re
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
from e2e import faults
from e2e.launched import Launched, events
from e2e.models import greedy, reference
from tokenizers import Tokenizer

pytestmark = pytest.mark.timeout(300)

PROMPT = "Once upon a time"
# Longer than a stream must be to be held.
LENGTH = 150


@pytest.fixture(scope="module")
def server(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Launched]:
    tmp = tmp_path_factory.mktemp("run")
    with Launched(tmp, *faults.flags(tmp, model)) as launched:
        yield launched.wait_until_serving()


def complete(server: Launched, **fields: Any) -> Any:
    body = {"prompt": PROMPT, "max_tokens": LENGTH, "temperature": 0, "ignore_eos": True, **fields}
    status, reply = server.post("/v1/completions", {"return_token_ids": True, **body})
    assert status == 200, reply
    return reply["choices"]


def pairs_of(model: Path) -> tuple[Tokenizer, list[str]]:
    """Pairs of letters that the model would write: each is two tokens, as its tokens are bytes."""
    tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
    ids, _ = greedy(model, PROMPT, LENGTH)
    pieces = [tokenizer.decode(ids[place : place + 2]) for place in range(5, LENGTH - 2)]
    words = [piece for piece in pieces if piece.isascii() and piece.isprintable() and not piece[0].isspace()]
    return tokenizer, words[:3]


def excluding(model: Path, sequences: list[list[int]]) -> list[int]:
    """Greedy tokens of transformers, of which none ends such a sequence."""
    prompt = Tokenizer.from_file(str(model / "tokenizer.json")).encode(PROMPT).ids
    output: list[int] = []
    for _ in range(LENGTH):
        with torch.no_grad():
            row = reference(model)(torch.tensor([prompt + output])).logits[0, -1]
        for *before, last in sequences:
            if before == output[len(output) - len(before) :]:
                row[last] = -torch.inf
        output.append(int(row.argmax()))
    return output


def test_bad_words_are_the_same_in_every_mixture(server: Launched, model: Path) -> None:
    tokenizer, words = pairs_of(model)
    assert words, "the model writes letters"
    sequences = [tokenizer.encode(text).ids for word in words for text in (word, f" {word}")]
    expected = excluding(model, sequences)
    assert expected != greedy(model, PROMPT, LENGTH)[0], "the words matter"
    whole = complete(server, bad_words=words, n=2)
    assert [choice["token_ids"] for choice in whole] == [expected] * 2
    cached = complete(server, bad_words=words)
    assert cached[0]["token_ids"] == expected


def test_bad_words_are_the_same_after_a_lost_shard(server: Launched, model: Path) -> None:
    tokenizer, words = pairs_of(model)
    expected = excluding(model, [tokenizer.encode(text).ids for word in words for text in (word, f" {word}")])
    body = {"prompt": PROMPT, "max_tokens": LENGTH, "temperature": 0, "ignore_eos": True, "stream": True}
    body |= {"bad_words": words, "return_token_ids": True}
    before = faults.restarts(server)
    with server.request("POST", "/v1/completions", body) as response:
        chunks = (json.loads(data) for data in events(response) if data != "[DONE]")
        tokens = (token for chunk in chunks for token in chunk["choices"][0]["token_ids"])
        with faults.held(server):
            ids = list(islice(tokens, 5))
            faults.kill(faults.shard(server, 1))
        ids += tokens
    assert ids == expected
    faults.wait_until_ready(server)
    assert faults.restarts(server) == before + 1


def test_a_stop_token_and_an_allow_list(server: Launched, model: Path) -> None:
    ids, _ = greedy(model, PROMPT, LENGTH)
    stop = ids[7]
    [choice] = complete(server, stop_token_ids=[stop])
    first = ids.index(stop)
    assert choice["token_ids"] == ids[: first + 1]
    assert choice["finish_reason"] == "stop"
    allowed = sorted(set(ids[:9]))
    [choice] = complete(server, allowed_token_ids=allowed, max_tokens=20, temperature=1.5, seed=3)
    assert set(choice["token_ids"]) <= set(allowed)


def test_a_prompt_has_ranks_and_a_tokenizer_without_gaps_refuses_suffix(server: Launched) -> None:
    [choice] = complete(server, prompt_logprobs=2, max_tokens=1)
    assert choice["prompt_logprobs"][0] is None
    for token, found in zip(choice["prompt_token_ids"][1:], choice["prompt_logprobs"][1:], strict=True):
        assert found[str(token)]["rank"] >= 1
        by_rank = sorted(found.values(), key=lambda entry: entry["rank"])
        assert [entry["logprob"] for entry in by_rank] == sorted(
            (entry["logprob"] for entry in by_rank), reverse=True
        )
    _, reply = server.post("/v1/completions", {"prompt": "a", "suffix": "b"})
    assert reply["error"]["param"] == "suffix"


def test_named_tokens_have_the_log_probabilities_of_the_model(server: Launched, model: Path) -> None:
    ids = Tokenizer.from_file(str(model / "tokenizer.json")).encode(PROMPT).ids
    with torch.no_grad():
        expected = reference(model)(torch.tensor([ids])).logits[0, -1].log_softmax(-1)
    named = [int(expected.argmin()), 40, int(expected.argmax())]
    choice = complete(server, logprobs=1, logprob_token_ids=named, return_tokens_as_token_ids=True)[0]
    found = choice["logprobs"]["top_logprobs"][0]
    assert found == pytest.approx(
        {f"token_id:{number}": float(expected[number]) for number in named}, abs=1e-3
    )
    messages = [{"role": "user", "content": "x"}]
    body = {
        "messages": messages,
        "max_tokens": 3,
        "logprobs": True,
        "top_logprobs": 1,
        "logprob_token_ids": [40, 7],
    }
    status, reply = server.post("/v1/chat/completions", {**body, "return_tokens_as_token_ids": True})
    assert status == 200, reply
    for entry in reply["choices"][0]["logprobs"]["content"]:
        own = [entry["token"]] if entry["token"] not in ("token_id:40", "token_id:7") else []
        assert [top["token"] for top in entry["top_logprobs"]] == [*own, "token_id:40", "token_id:7"]


def test_a_regular_expression_ends_the_text_wherever_it_is_cut(server: Launched) -> None:
    text = complete(server)[0]["text"]
    letter = next(char for char in text[20:] if char.isalpha())
    pattern = f"[{letter}](?s:.)"
    first = re.search(pattern, text)
    assert first is not None
    asked = {
        "prompt": PROMPT,
        "max_tokens": LENGTH,
        "temperature": 0,
        "ignore_eos": True,
        "stop_regex": pattern,
    }
    status, reply = server.post("/v1/completions", asked)
    assert status == 200, reply
    choice = reply["choices"][0]
    assert (choice["text"], choice["finish_reason"]) == (text[: first.start()], "stop")
    assert choice["matched_stop"] == pattern
    chunks = [
        json.loads(data)["choices"][0]
        for data in server.stream("/v1/completions", {**asked, "stream": True})[:-1]
    ]
    assert "".join(chunk["text"] for chunk in chunks) == choice["text"]
    assert chunks[-1]["matched_stop"] == pattern
