"""The data of the sweep: each call to time, the bytes and flop that it needs, its rivals; and the sizes of a sweep."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch

BF16, FP8 = torch.bfloat16, torch.float8_e4m3fn
Call = Callable[[], Any]


@dataclass(frozen=True)
class Work:
    """A call to time, and the bytes and flop that it needs. A rival is made when it is timed; `Case` names them."""

    run: Call
    num_bytes: float
    flops: float = 0.0
    rivals: dict[str, Callable[[], Call]] = field(default_factory=dict)


class Case(NamedTuple):
    """A work by name; `make` allocates its memory. `tests`: the file of cases that says whether its op is right."""

    name: str
    make: Callable[[], Work]
    tests: str
    rivals: tuple[str, ...] = ()


class Latents(NamedTuple):
    """Few heads and many; numbers of a latent, of what is rotated, of the rest of a query and of a value."""

    heads: tuple[int, int]
    rank: int
    rope: int
    nope: int
    value: int


class Sizes(NamedTuple):
    """The sizes of a sweep: those of an 8B Llama on a GPU, small ones where kernels are interpreted."""

    device: str
    # Query heads, key heads, and the width of each; positions of a block.
    heads: int
    kv_heads: int
    dim: int
    block: int
    # Positions of a block that holds whole tiles of keys.
    large_block: int
    hidden: int
    inner: int
    vocab: int
    # Tokens of a large step; rows of a large decode step.
    tokens: int
    rows: int
    # Streams, and the context of each; the usual one of them.
    decodes: tuple[tuple[int, int], ...]
    usual: tuple[int, int]
    # A long context, and how many others beside it, of which length.
    skewed: tuple[int, int, int]
    # Tokens, and the context that they end.
    prompts: tuple[tuple[int, int], ...]
    # The row counts of matrix products with few rows.
    few_rows: tuple[int, ...]
    # Rows, and different adapters among them.
    adapters: tuple[tuple[int, int], ...]
    latents: Latents
    # For experts: tokens, experts, experts of a token, width, inner width.
    experts: tuple[tuple[int, int, int, int, int], ...]
    # For recurrent layers: tokens of each sequence (1: a decode) and sequences; then
    # key heads, heads, width of each;
    delta: tuple[tuple[int, int, int, int, int], ...]
    # heads, width of each;
    delta_by_rows: tuple[tuple[int, int, int, int], ...]
    # groups, heads, width of each, and of its state;
    space: tuple[tuple[int, int, int, int, int, int], ...]
    # channels, and numbers of the state of each;
    scan: tuple[tuple[int, int, int, int], ...]
    # channels, and tokens that each reaches over.
    convolution: tuple[tuple[int, int, int, int], ...]


REAL = Sizes(
    device="cuda",
    heads=32,
    kv_heads=8,
    dim=128,
    block=16,
    large_block=128,
    hidden=4096,
    inner=14336,
    vocab=128256,
    tokens=16384,
    rows=256,
    decodes=((1, 4096), (8, 4096), (64, 4096), (256, 1024), (1, 131072)),
    usual=(64, 4096),
    skewed=(131072, 31, 4096),
    prompts=((8192, 8192), (1024, 1024), (2048, 16384)),
    few_rows=(1, 4, 16),
    adapters=((1, 1), (8, 8), (64, 8), (2048, 8)),
    # DeepSeek V3's, on eight GPUs and on one.
    latents=Latents((16, 128), 512, 64, 128, 128),
    # Mixtral's and Qwen3's, of a decode and of a prompt.
    experts=((64, 8, 2, 4096, 14336), (64, 128, 8, 2048, 768), (4096, 8, 2, 4096, 14336), (4096, 128, 8, 2048, 768)),
    # Qwen3-Next's, Kimi-Linear's, Nemotron-H's, Falcon-Mamba's; the convolution is Qwen3-Next's.
    delta=((8192, 1, 16, 32, 128), (1024, 8, 16, 32, 128), (1, 64, 16, 32, 128)),
    delta_by_rows=((8192, 1, 32, 128), (1024, 8, 32, 128), (1, 64, 32, 128)),
    space=((8192, 1, 8, 128, 64, 128), (1, 64, 8, 128, 64, 128)),
    scan=((8192, 1, 8192, 16), (1, 64, 8192, 16)),
    convolution=((8192, 1, 8192, 4), (1, 64, 8192, 4)),
)  # fmt: skip
TINY = Sizes(
    device="cpu",
    heads=4,
    kv_heads=2,
    dim=32,
    block=16,
    large_block=32,
    hidden=64,
    inner=32,
    vocab=64,
    tokens=4,
    rows=2,
    decodes=((2, 20),),
    usual=(2, 20),
    skewed=(70, 1, 20),
    prompts=((20, 20), (12, 40)),
    few_rows=(2,),
    adapters=((3, 2),),
    latents=Latents((2, 4), 32, 16, 16, 16),
    experts=((2, 4, 2, 32, 32),),
    delta=((20, 2, 1, 2, 16), (1, 2, 1, 2, 16)),
    delta_by_rows=((20, 2, 2, 16), (1, 2, 2, 16)),
    space=((20, 2, 1, 2, 16, 16),),
    scan=((20, 2, 16, 16),),
    convolution=((20, 2, 32, 4),),
)


def random(sizes: Sizes, *shape: int, dtype: torch.dtype = BF16) -> torch.Tensor:
    """Random numbers on the device of a sweep."""
    made = torch.randn(shape, device=sizes.device, dtype=BF16 if dtype == FP8 else dtype)
    return made.to(dtype)
