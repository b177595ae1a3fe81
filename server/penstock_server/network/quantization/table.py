"""The formats of checkpoints by the method that config.json names: a new one is a file here, and a row."""

from collections.abc import Callable

from penstock_server.architectures.fields import Fields
from penstock_server.files.quantization import Declared
from penstock_server.network.quantization.auto_round import AutoRound
from penstock_server.network.quantization.awq import Awq
from penstock_server.network.quantization.bitsandbytes import Bitsandbytes
from penstock_server.network.quantization.compressed_tensors import CompressedTensors
from penstock_server.network.quantization.fp8 import FbgemmFp8, Fp8
from penstock_server.network.quantization.gguf import Gguf
from penstock_server.network.quantization.gptq import Gptq
from penstock_server.network.quantization.modelopt import ModelOpt
from penstock_server.network.quantization.mxfp4 import Mxfp4
from penstock_server.network.quantization.scheme import Format
from penstock_server.network.quantization.torchao import Torchao

FORMATS: dict[str, Callable[[Fields], Format]] = {
    "awq": Awq,
    "gptq": Gptq,
    "auto-round": AutoRound,
    "gguf": Gguf,
    "bitsandbytes": Bitsandbytes,
    "compressed-tensors": CompressedTensors,
    "fp8": Fp8,
    "fbgemm_fp8": FbgemmFp8,
    "modelopt": ModelOpt,
    "mxfp4": Mxfp4,
    "torchao": Torchao,
}


def format_of(declared: Declared) -> Format:
    """The reader of a checkpoint; raises StartError for settings that it does not know."""
    return FORMATS[declared.method](declared.settings)
