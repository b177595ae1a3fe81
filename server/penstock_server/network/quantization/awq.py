"""Checkpoints of AWQ, packed for its `gemm` kernels: 4-bit integers in groups, which are repacked row by row."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from penstock_kernels import IntGroups, Quantized
from penstock_kernels.base.bit_stream import pack

from penstock_server.architectures.fields import Fields
from penstock_server.files.quantization import refuse_unknown
from penstock_server.network.quantization.scheme import Scheme, Source
from penstock_server.network.quantization.skipped import Skipped
from penstock_server.network.quantization.stored import FLOATS, Stored, Wanted

_KNOWN = (
    "quant_method", "bits", "w_bit", "group_size", "q_group_size", "zero_point", "version", "backend",
    "do_fuse", "exllama_config", "fuse_max_seq_len", "modules_to_fuse",
)  # fmt: skip
_SKIPPED = ("modules_to_not_convert",)
# Outputs of a word.
_EACH = 8
# Where in a word, from its low end, the outputs 0 to 7 are.
_PLACES = torch.tensor([0, 4, 1, 5, 2, 6, 3, 7], dtype=torch.int32) * 4


class Awq:
    """Words of eight outputs, inputs first."""

    def __init__(self, settings: Fields) -> None:
        refuse_unknown(settings, (*_KNOWN, *_SKIPPED))
        version = str(settings.get("version", "gemm"))
        if version.lower() != "gemm":
            raise settings.error(
                "version", version, "gemm; others are packed in other ways: convert the model to gemm"
            )
        for key in ("bits", "w_bit"):
            if settings.get(key, 4) != 4:
                raise settings.error(key, settings.get(key), "4")
        if settings.get("zero_point", True) is not True:
            raise settings.error("zero_point", settings.get("zero_point"), "true")
        self.skipped = Skipped(settings, _SKIPPED)
        self.group_size = read_group_size(
            settings, "q_group_size" if "q_group_size" in settings.raw else "group_size"
        )
        self.name = f"AWQ in groups of {self.group_size or 'a row'}"

    def check(self, modules: Sequence[str]) -> None:
        self.skipped.check(modules)

    def scheme(self, source: Source, stored: Stored) -> Scheme:
        self.skipped.refuse(source)
        return AwqWords(self.group_size)


def read_group_size(settings: Fields, key: str) -> int:
    """Inputs of a group; 0 means all."""
    return 0 if settings.get(key) == -1 else settings.integer(key, 128)


class AwqWords(NamedTuple):
    """One matrix."""

    # 0 means all inputs.
    group_size: int

    def wanted(self, source: Source, stored: Stored) -> Sequence[Wanted]:
        name, (outputs, inputs) = source.name, source.shape
        groups, width = -(-inputs // (self.group_size or inputs)), -(-outputs // _EACH)
        return (
            Wanted(f"{name}.qweight", ("I32",), ((inputs, width),)),
            Wanted(f"{name}.qzeros", ("I32",), ((groups, width),)),
            Wanted(f"{name}.scales", FLOATS, ((groups, outputs),)),
        )

    def read(self, source: Source, stored: Stored, rows: slice, columns: slice) -> Quantized:
        size = self.group_size or source.shape[1]
        groups = slice(columns.start // size, -(-columns.stop // size))
        codes = _unpack(stored.read(f"{source.name}.qweight")[columns], rows)
        return IntGroups(
            pack(codes, 4),
            stored.read_scales(f"{source.name}.scales")[groups, rows].T.contiguous(),
            _unpack(stored.read(f"{source.name}.qzeros")[groups], rows),
            columns.stop - columns.start,
            4,
            size,
            columns.start % size,
        )


def _unpack(words: torch.Tensor, rows: slice) -> torch.Tensor:
    """Some outputs of words [inputs, outputs / 8], outputs first."""
    begin = rows.start // _EACH
    part = words[:, begin : -(-rows.stop // _EACH)].T.contiguous()
    # [words of outputs, 8, inputs]
    values = torch.stack([(part >> place & 15).to(torch.uint8) for place in _PLACES.tolist()], dim=1)
    return values.flatten(0, 1)[rows.start - begin * _EACH : rows.stop - begin * _EACH]
