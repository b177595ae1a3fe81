"""TGI's own client: `use_text_generation.py URL`. Writes what it got as JSON."""

import asyncio
import json
import sys

from text_generation import AsyncClient, Client
from text_generation.errors import ValidationError

PROMPT, NUM_TOKENS = "Once upon a time", 8


async def without_waiting(url: str) -> tuple[str, str]:
    client = AsyncClient(url)
    whole = await client.generate(PROMPT, max_new_tokens=NUM_TOKENS)
    pieces = [response async for response in client.generate_stream(PROMPT, max_new_tokens=NUM_TOKENS)]
    return whole.generated_text, pieces[-1].generated_text


def refusal(client: Client) -> str:
    # The client checks most values itself; this limit only the server knows.
    try:
        client.generate(PROMPT * 10_000, max_new_tokens=NUM_TOKENS)
    except ValidationError as error:
        return str(error)
    return ""


def main(url: str) -> None:
    client = Client(url)
    whole = client.generate(PROMPT, max_new_tokens=NUM_TOKENS, decoder_input_details=True)
    pieces = list(client.generate_stream(PROMPT, max_new_tokens=NUM_TOKENS))
    sampled = client.generate(PROMPT, max_new_tokens=NUM_TOKENS, do_sample=True, best_of=2, top_p=0.9)
    found = {
        "whole": whole.generated_text,
        "finish_reason": whole.details.finish_reason.value,
        "prefill": len(whole.details.prefill),
        "streamed": "".join(piece.token.text for piece in pieces if not piece.token.special),
        "best_of": len(sampled.details.best_of_sequences or []) + 1,
        "async": asyncio.run(without_waiting(url)),
        "refusal": refusal(client),
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1])
