"""Mutants of a healthy model folder, several hundred: name -> what spoils the folder."""

import json
import random
import struct
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

NAN, INFINITY = b"\x00\x00\xc0\x7f", b"\x00\x00\x80\xff"
NOT_COUNTS: tuple[Any, ...] = (0, -1, 1.5, 10**30, "8", [8], {}, True, float("nan"))
NOT_NUMBERS: tuple[Any, ...] = (0, -1.0, 1e31, "x", [1.0], {}, True, float("inf"), float("nan"))
COUNTS = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
          "num_key_value_heads", "head_dim", "max_position_embeddings")  # fmt: skip
# Sizes that are possible, and not those of the files.
WRONG = {"vocab_size": 300, "hidden_size": 80, "intermediate_size": 2**26, "num_hidden_layers": 4096,
         "num_attention_heads": 2**20, "num_key_value_heads": 8, "head_dim": 20}  # fmt: skip
# Offsets as far apart as they should be, and far away.
BEYOND = [2**63, 2**63 + 38016]
NAME = "model.layers.1.mlp.down_proj.weight"

Spoil = Callable[[Path], None]


class Mutant(NamedTuple):
    """The change to a folder, and the words that the refusal must name in addition to the folder."""

    spoil: Spoil
    names: str


def mutants(healthy: Path) -> dict[str, Mutant]:
    """All of them, made for the folder `healthy`."""
    parts = (_truncations(healthy), _configs(), _headers(), _indexes(), _data(healthy), _code(), _folders())
    made = [pair for part in parts for pair in part]
    assert len(dict(made)) == len(made), "two mutants of one name"
    return dict(made)


def weights(folder: Path) -> Path:
    return folder / "model.safetensors"


def read_header(folder: Path) -> tuple[dict[str, Any], bytes]:
    raw = weights(folder).read_bytes()
    (length,) = struct.unpack("<Q", raw[:8])
    return json.loads(raw[8 : 8 + length]), raw[8 + length :]


def write_header(folder: Path, header: Any, data: bytes) -> None:
    encoded = header if isinstance(header, bytes) else json.dumps(header).encode()
    weights(folder).write_bytes(struct.pack("<Q", len(encoded)) + encoded + data)


def _truncations(healthy: Path) -> Iterator[tuple[str, Mutant]]:
    """At every boundary of the file, one byte before and after it, and at random."""
    header, data = read_header(healthy)
    size = weights(healthy).stat().st_size
    begin = size - len(data)
    header.pop("__metadata__", None)
    ends = [begin + entry["data_offsets"][1] for entry in header.values()]
    around = {end + shift for end in ends for shift in (-1, 0, 1)}
    rng = random.Random(0)
    keeps = (
        {0, 1, 7, 8, 9, 100, begin - 1, begin, begin + 1} | around | {rng.randrange(size) for _ in range(40)}
    )
    for keep in sorted(keep for keep in keeps if keep < size):
        yield f"cut at {keep}", Mutant(partial(_cut, keep=keep), "model.safetensors")


def _cut(folder: Path, keep: int) -> None:
    with weights(folder).open("r+b") as file:
        file.truncate(keep)


def _configs() -> Iterator[tuple[str, Mutant]]:
    for key in COUNTS:
        for value in NOT_COUNTS:
            yield f"{key} is {value!r}", _config({key: value}, key)
        if key in WRONG:
            yield f"{key} is wrong", _config({key: WRONG[key]}, "model.")
    for value in NOT_NUMBERS:
        yield f"rms_norm_eps is {value!r}", _config({"rms_norm_eps": value}, "rms_norm_eps")
        yield f"rope_theta is {value!r}", _config({"rope_parameters": {"rope_theta": value}}, "rope_theta")
        scaling = {"rope_type": "yarn", "factor": value}
        yield f"factor is {value!r}", _config({"rope_parameters": scaling}, "factor")
    for value in ("x", 3, [1], True):
        yield f"rope_parameters is {value!r}", _config({"rope_parameters": value}, "rope_parameters")
    for value in ("relu6", 3, [], "silu\n", "__import__('os')"):
        yield f"hidden_act is {value!r}", _config({"hidden_act": value}, "hidden_act")
    for value in ("int4", 3, [], "torch.load"):
        yield f"dtype is {value!r}", _config({"dtype": value}, "dtype")
    for value in ("yes", 1, [], {}):
        yield (
            f"tie_word_embeddings is {value!r}",
            _config({"tie_word_embeddings": value}, "tie_word_embeddings"),
        )
    for value in (None, "", "Llama", "../llama", 3, [], {}, "llama\x00"):
        yield f"model_type is {value!r}", _config({"model_type": value}, "model_type")
    same = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 2.0, "high_freq_factor": 2.0}
    yield "llama3 factors are equal", _config({"rope_parameters": same}, "high_freq_factor")


def _config(changes: dict[str, Any], names: str) -> Mutant:
    def spoil(folder: Path) -> None:
        path = folder / "config.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))

    return Mutant(spoil, names)


def _headers() -> Iterator[tuple[str, Mutant]]:
    entries: dict[str, Any] = {
        "number": 3,
        "null": None,
        "list": [],
        "empty": {},
        "no dtype": {"shape": [1], "data_offsets": [0, 4]},
        "no shape": {"dtype": "F32", "data_offsets": [0, 4]},
        "no offsets": {"dtype": "F32", "shape": [1]},
    }
    for name, entry in entries.items():
        yield f"entry is {name}", _header(NAME, entry, NAME)
    fields: dict[str, tuple[Any, ...]] = {
        "dtype": ("F99", 3, None, "I32", "BOOL", [], "f32"),
        "shape": (
            [],
            [72],
            [132, 72],
            [72, 132, 1],
            [-72, 132],
            [2**62, 4],
            [72.0, 132],
            "72",
            None,
            [[72], 132],
        ),
        "data_offsets": (
            [0, 0],
            [4, 0],
            [-4, 0],
            [0],
            [0, 1, 2],
            "0",
            None,
            [0, 2**63],
            BEYOND,
        ),
    }
    for field, values in fields.items():
        for value in values:
            # Beyond the end, it is the next tensor that has a gap before it.
            names = "tensor" if value == BEYOND else NAME
            yield f"tensor: {field} is {value!r}", _header(NAME, {field: value}, names, update=True)
    for size in (0, 1, 2**20, 2**31, 2**63 - 1, 2**64 - 1):
        yield f"header of {size}", Mutant(partial(_size, size=size), "model.safetensors")
    for text in (
        b"{}",
        b"[]",
        b"null",
        b"{",
        b"\xff\xfe",
        b'{"a": NaN}',
        b"[" * 100_000,
        b'{"a"' + b" " * 99,
    ):
        yield f"header {text[:12]!r}", Mutant(partial(_replace, header=text), "model")
    for name, other in (("twin", 0), ("shifted", 4), ("back", -4)):
        yield f"overlap {name}", Mutant(partial(_overlap, by=other), "tensor")


def _header(name: str, entry: Any, names: str, update: bool = False) -> Mutant:
    def spoil(folder: Path) -> None:
        header, data = read_header(folder)
        header[name] = {**header[name], **entry} if update else entry
        write_header(folder, header, data)

    return Mutant(spoil, names)


def _size(folder: Path, size: int) -> None:
    raw = weights(folder).read_bytes()
    weights(folder).write_bytes(struct.pack("<Q", size) + raw[8:])


def _replace(folder: Path, header: bytes) -> None:
    write_header(folder, header, read_header(folder)[1])


def _overlap(folder: Path, by: int) -> None:
    header, data = read_header(folder)
    begin, end = header[NAME]["data_offsets"]
    header["evil"] = {**header[NAME], "data_offsets": [begin + by, end + by]}
    write_header(folder, header, data)


def _indexes() -> Iterator[tuple[str, Mutant]]:
    names = ("../model.safetensors", "/etc/passwd", "a/model.safetensors", "..", ".", "", "model.bin", "~", "model",
             "other.safetensors", "model.safetensors/", "model\x00.safetensors", "\\model.safetensors")  # fmt: skip
    for name in names:
        yield f"index names {name!r}", _index({"weight_map": {NAME: name}})
    broken: tuple[Any, ...] = (
        {},
        {"weight_map": {}},
        {"weight_map": []},
        {"weight_map": {NAME: 3}},
        [],
        None,
        7,
        "x",
    )
    for index in broken:
        yield f"index is {index!r}", _index(index)


def _index(index: Any) -> Mutant:
    def spoil(folder: Path) -> None:
        (folder / "model.safetensors.index.json").write_text(json.dumps(index))

    return Mutant(spoil, "model.safetensors.index.json")


def _data(healthy: Path) -> Iterator[tuple[str, Mutant]]:
    """Numbers that are none, at the first, a middle and the last place of every tensor."""
    header, _data = read_header(healthy)
    header.pop("__metadata__", None)
    for tensor, entry in header.items():
        begin, end = entry["data_offsets"]
        for place, number in ((begin, NAN), ((begin + end) // 8 * 4, INFINITY), (end - 4, NAN)):
            title = f"{tensor} at {place}"
            yield title, Mutant(partial(_poison, place=place, number=number), tensor)


def _poison(folder: Path, place: int, number: bytes) -> None:
    size = weights(folder).stat().st_size - len(read_header(folder)[1])
    with weights(folder).open("r+b") as file:
        file.seek(size + place)
        file.write(number)


def _code() -> Iterator[tuple[str, Mutant]]:
    """Code in the folder, which writes a file when it runs."""
    for model_type in ("evil", None):
        changes = {
            "model_type": model_type,
            "auto_map": {"AutoModelForCausalLM": "evil.Evil", "AutoConfig": "evil.C"},
        }
        yield f"auto_map of {model_type}", _config(changes, "model_type")
    yield "pickle", Mutant(_pickle, "save_pretrained")


def _pickle(folder: Path) -> None:
    weights(folder).unlink()
    (folder / "pytorch_model.bin").write_bytes(b"cposix\nsystem\n(S'touch executed'\ntR.")


def _folders() -> Iterator[tuple[str, Mutant]]:
    yield "no config", Mutant(lambda folder: (folder / "config.json").unlink(), "config.json")
    yield "no weights", Mutant(lambda folder: weights(folder).unlink(), "*.safetensors")
    for text in (b"", b"{", b"[]", b"null", b"\xff", b"[" * 100_000, b'{"a": 1' + b"0" * 5000 + b"}", b'"x"'):
        yield f"config is {text[:8]!r}", Mutant(partial(_text, text=text), "config.json")


def _text(folder: Path, text: bytes) -> None:
    (folder / "config.json").write_bytes(text)
