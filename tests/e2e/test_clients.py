"""The clients that people have, unmodified, against a real server: Hugging Face's, OpenAI's, Anthropic's."""

import asyncio
from collections.abc import Iterator
from typing import Any

import anthropic
import openai
import pytest
from e2e.launched import Launched
from e2e.models import make_model
from huggingface_hub import AsyncInferenceClient, ChatCompletionOutput, InferenceClient

KEY = "key-of-a-test"
MESSAGES = [{"role": "user", "content": "hello"}]
NUM_TOKENS = 6
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
# Anthropic's client has no argument for it any more.
GREEDY = {"temperature": 0}


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server that asks for a key."""
    model = make_model(tmp_path_factory.mktemp("model"))
    flags = (f"--model-id={model}", "--dtype=float32", f"--api-key={KEY}")
    with Launched(tmp_path_factory.mktemp("run"), *flags) as launched:
        launched.wait_until_serving()
        assert launched.address
        yield "http://{}:{}".format(*launched.address)


def test_hugging_face_generates_text(url: str) -> None:
    client = InferenceClient(url, token=KEY)
    whole = client.text_generation("hello", max_new_tokens=NUM_TOKENS, details=True)
    assert whole.details is not None
    assert whole.details.generated_tokens == NUM_TOKENS
    assert whole.details.finish_reason == "length"
    pieces = list(client.text_generation("hello", max_new_tokens=NUM_TOKENS, stream=True, details=True))
    assert pieces[-1].generated_text == whole.generated_text
    assert [piece.token.id for piece in pieces] == [token.id for token in whole.details.tokens]


def test_hugging_face_chats(url: str) -> None:
    client = InferenceClient(url, token=KEY)
    whole = client.chat_completion(MESSAGES, max_tokens=NUM_TOKENS, temperature=0)
    assert whole.usage.completion_tokens == NUM_TOKENS
    stream = client.chat_completion(MESSAGES, max_tokens=NUM_TOKENS, temperature=0, stream=True)
    text = "".join(chunk.choices[0].delta.content or "" for chunk in stream)
    assert text == whole.choices[0].message.content


def test_hugging_face_without_waiting(url: str) -> None:
    async def both() -> tuple[str, str]:
        async with AsyncInferenceClient(url, token=KEY) as client:
            whole = await client.text_generation("hello", max_new_tokens=NUM_TOKENS, return_full_text=False)
            stream = await client.text_generation("hello", max_new_tokens=NUM_TOKENS, stream=True)
            return whole, "".join([piece async for piece in stream])

    whole, streamed = asyncio.run(both())
    assert whole == streamed != ""


def test_hugging_face_calls_tools_with_and_without_waiting(demo: Launched) -> None:
    assert demo.address
    address = "http://{}:{}".format(*demo.address)
    asked: dict[str, Any] = {
        "messages": [{"role": "user", "content": "What is the weather in Paris?"}],
        "tools": [WEATHER],
        "tool_choice": "required",
        "temperature": 0,
        "max_tokens": 60,
    }

    async def without_waiting() -> str:
        async with AsyncInferenceClient(address) as client:
            return arguments_of(await client.chat_completion(**asked))

    expected = '{"city": "Paris"}'
    client = InferenceClient(address)
    assert arguments_of(client.chat_completion(**asked)) == expected
    assert asyncio.run(without_waiting()) == expected
    chunks = client.chat_completion(**asked, stream=True)
    pieces = [call.function.arguments for chunk in chunks for call in chunk.choices[0].delta.tool_calls or []]
    assert "".join(piece or "" for piece in pieces) == expected


def arguments_of(answer: ChatCompletionOutput) -> str:
    calls = answer.choices[0].message.tool_calls
    assert calls is not None
    assert calls[0].function.name == "get_weather"
    arguments: str = calls[0].function.arguments
    return arguments


def test_openai_chats_and_completes(url: str) -> None:
    with openai.OpenAI(base_url=f"{url}/v1", api_key=KEY) as client:
        model = client.models.list().data[0].id
        assert client.models.retrieve(model).id == model
        whole = client.chat.completions.create(
            model=model, messages=[{"role": "user", "content": "hello"}], max_tokens=NUM_TOKENS, temperature=0
        )
        assert whole.usage is not None
        assert whole.usage.completion_tokens == NUM_TOKENS
        assert whole.choices[0].finish_reason == "length"
        completion = client.completions.create(
            model=model, prompt="hello", max_tokens=NUM_TOKENS, temperature=0
        )
        assert completion.choices[0].text != ""


def test_openai_responds(url: str) -> None:
    with openai.OpenAI(base_url=f"{url}/v1", api_key=KEY) as client:
        whole = client.responses.create(
            model="tgi", input="hello", max_output_tokens=NUM_TOKENS, temperature=0
        )
        assert whole.status == "incomplete"
        assert whole.usage is not None
        assert whole.usage.output_tokens == NUM_TOKENS
        with client.responses.stream(
            model="tgi", input="hello", max_output_tokens=NUM_TOKENS, temperature=0
        ) as stream:
            text = "".join(event.delta for event in stream if event.type == "response.output_text.delta")
        assert text == whole.output_text


def test_anthropic_answers(url: str) -> None:
    with anthropic.Anthropic(base_url=url, api_key=KEY) as client:
        whole = client.messages.create(
            model="tgi",
            messages=[{"role": "user", "content": "hello"}],
            max_tokens=NUM_TOKENS,
            extra_body=GREEDY,
        )
        assert (whole.stop_reason, whole.usage.output_tokens) == ("max_tokens", NUM_TOKENS)
        with client.messages.stream(
            model="tgi",
            messages=[{"role": "user", "content": "hello"}],
            max_tokens=NUM_TOKENS,
            extra_body=GREEDY,
        ) as stream:
            text = "".join(stream.text_stream)
        assert whole.content[0].type == "text"
        assert text == whole.content[0].text
        counted = client.messages.count_tokens(model="tgi", messages=[{"role": "user", "content": "hello"}])
        # Tokens that were in the cache are reported separately.
        cached = whole.usage.cache_read_input_tokens or 0
        assert counted.input_tokens == whole.usage.input_tokens + cached


def test_an_echoed_prompt_is_scored_with_what_was_likelier(url: str) -> None:
    with openai.OpenAI(base_url=f"{url}/v1", api_key=KEY) as client:
        scored = client.completions.create(
            model="tgi", prompt="hello", echo=True, logprobs=2, max_tokens=0, temperature=0
        )
    logprobs = scored.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.tokens is not None
    assert logprobs.token_logprobs is not None
    assert logprobs.top_logprobs is not None
    assert "".join(logprobs.tokens) == "hello"
    first, *others = logprobs.top_logprobs
    assert first is None
    for token, logprob, top in zip(logprobs.tokens[1:], logprobs.token_logprobs[1:], others, strict=True):
        assert 1 <= len(top) <= 3, "the token and the most likely; parts of characters share their text"
        assert logprob <= max(top.values()), "none is likelier than the likeliest"
        assert top[token] == logprob


def test_a_wrong_key_is_each_clients_own_error(url: str) -> None:
    with (
        openai.OpenAI(base_url=f"{url}/v1", api_key="wrong") as client,
        pytest.raises(openai.AuthenticationError),
    ):
        client.models.list()
    with (
        anthropic.Anthropic(base_url=url, api_key="wrong") as other,
        pytest.raises(anthropic.AuthenticationError),
    ):
        other.messages.create(model="tgi", messages=[{"role": "user", "content": "hi"}], max_tokens=1)
