"""Every quantized format gives the tokens of what its numbers mean, also on shards that begin anywhere."""

import pytest
from quantized_checks import check_ranks, check_tokens
from quantized_formats import Made
from test_quantization_auto_round import FORMAT as AUTO_ROUND
from test_quantization_awq_gptq import FORMAT as WORDS
from test_quantization_bitsandbytes import FORMAT as BITSANDBYTES
from test_quantization_compressed_tensors import FORMAT as COMPRESSED
from test_quantization_float8 import FORMAT as FLOAT8
from test_quantization_fp4 import FORMAT as FP4
from test_quantization_torchao import FORMAT as TORCHAO

FORMATS = {
    "words": WORDS,
    "auto-round": AUTO_ROUND,
    "bitsandbytes": BITSANDBYTES,
    "compressed-tensors": COMPRESSED,
    "float8": FLOAT8,
    "fp4": FP4,
    "torchao": TORCHAO,
}


@pytest.mark.parametrize(("of", "name"), [(of, name) for of in FORMATS for name in FORMATS[of].models])
def test_tokens_are_those_of_what_the_numbers_mean(of: str, name: str, made: Made) -> None:
    check_tokens(made(FORMATS[of], name))


# Inside a group, a block or a byte.
@pytest.mark.parametrize("size", [2, 3, 4])
@pytest.mark.parametrize(("of", "name"), [(of, name) for of in FORMATS for name in FORMATS[of].divided])
def test_shards_may_begin_anywhere(
    of: str, name: str, size: int, made: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    check_ranks(made(FORMATS[of], name), size, monkeypatch)
