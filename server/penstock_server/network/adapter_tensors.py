"""The tensors of an adapter's file by module and kind: which there are, whether they fit, and their numbers."""

import re
from collections.abc import Collection, Sequence
from typing import NamedTuple

import torch
from penstock_kernels import all_finite
from safetensors.torch import load as parse_tensors

from penstock_server.base.errors import AdapterRefused, StartError
from penstock_server.files.adapter.config import is_within
from penstock_server.files.adapter.folder import AdapterFolder
from penstock_server.network.base_weights import BaseWeights
from penstock_server.network.layers.adapted import AdaptedPart

_KINDS = (
    ("A", re.compile(r"(.+)\.lora_A\.weight")),
    ("B", re.compile(r"(.+)\.lora_B\.weight")),
    ("low-rank bias", re.compile(r"(.+)\.lora_B\.bias")),
    ("magnitude", re.compile(r"(.+)\.lora_magnitude_vector(?:\.weight)?")),
    ("embedding A", re.compile(r"(.+)\.lora_embedding_A")),
    ("embedding B", re.compile(r"(.+)\.lora_embedding_B")),
    ("tokens", re.compile(r"(.+)\.token_adapter\.trainable_tokens_delta")),
    ("bias", re.compile(r"(.+?)(?:\.base_layer)?\.bias")),
    # A copy of the base model's, which PEFT saves for embeddings and heads.
    ("base", re.compile(r"(.+)\.base_layer\.weight")),
    # In the place of the base model's.
    ("saved", re.compile(r"(.+)\.weight")),
)
# With `bias: all`, PEFT saves the biases of saved modules once more, and those that they take the place of.
_REPEATED = re.compile(r"(.+)\.(?:modules_to_save|original_module)\.bias")
_VECTORS = {"low-rank bias", "bias"}
_LOW_RANK = {"A", "B", "low-rank bias", "magnitude"}
# The names of one module's tensors in the file, by kind.
Names = dict[str, str]


class Vocabulary(NamedTuple):
    """The modules of a model whose weights are rows of tokens."""

    # The module of the input embeddings, and the modules that make logits.
    embedding: str
    heads: tuple[str, ...]
    # The shape of the embeddings: [tokens, numbers of each].
    shape: tuple[int, int]
    is_tied: bool


def by_module(folder: AdapterFolder, vocabulary: Vocabulary) -> dict[str, Names]:
    """The tensors of each module. Raises AdapterRefused where the kind of one is not supported."""
    modules: dict[str, Names] = {}
    for name in folder.entries:
        repeated = _REPEATED.fullmatch(name)
        if repeated is not None and f"{repeated[1]}.bias" in folder.entries and folder.config.replaces_biases:
            continue
        found = ((kind, match) for kind, pattern in _KINDS if (match := pattern.fullmatch(name)))
        kind, match = next(found, ("", None))
        if match is None or not _is_supported(kind, match[1], folder, vocabulary):
            raise AdapterRefused(f"{folder.name_in_file(name)} is of a kind that is not supported")
        modules.setdefault(match[1], {})[kind] = name
    of_tokens = modules.get(vocabulary.embedding, {}).get("tokens")
    if of_tokens is not None and vocabulary.is_tied:
        for head in vocabulary.heads:
            modules.setdefault(head, {}).setdefault("tokens", of_tokens)
    return modules


def _is_supported(kind: str, module: str, folder: AdapterFolder, vocabulary: Vocabulary) -> bool:
    config, has_tokens = folder.config, module in (vocabulary.embedding, *vocabulary.heads)
    if kind == "bias":
        return config.replaces_biases or config.targets.saves(module)
    if kind == "saved":
        return has_tokens or config.targets.saves(module)
    return has_tokens or kind not in ("base", "tokens")


def check(
    folder: AdapterFolder,
    modules: dict[str, Names],
    parts: Sequence[AdaptedPart],
    vocabulary: Vocabulary,
    norms: dict[str, tuple[int, ...]],
    experts: Collection[str],
) -> None:
    """Every tensor has a place and the shape for it, and none is missing. Reads no numbers.

    `norms`: shapes by name; `experts`: modules that are checked when they are read.
    """
    by_name = {part.module: part for part in parts}
    for module, names in modules.items():
        if module in by_name:
            _check_linear(folder, by_name[module], names)
        elif module == vocabulary.embedding:
            _check_embedding(folder, vocabulary, names)
        elif module in norms:
            refuse_any(folder, names, [kind for kind in names if kind not in ("saved", "bias")])
            for name in names.values():
                require_shape(folder, name, norms[module])
        elif module not in experts:
            first = next(iter(names.values()))
            raise AdapterRefused(
                f"{folder.name_in_file(first)}: the model has no such layer, or it cannot be adapted"
            )
    for module, part in by_name.items():
        if "A" not in modules.get(module, {}) and folder.config.targets.has(module, part.is_head):
            raise AdapterRefused(f"{folder.name_in_file(module)}.lora_A.weight is missing")
    input_names = modules.get(vocabulary.embedding, {})
    if "embedding A" not in input_names and folder.config.targets.has(vocabulary.embedding, is_head=True):
        raise AdapterRefused(f"{folder.name_in_file(vocabulary.embedding)}.lora_embedding_A is missing")
    _check_whole_modules(folder, modules, {*by_name, vocabulary.embedding, *norms}, vocabulary)


def _check_whole_modules(
    folder: AdapterFolder, modules: dict[str, Names], known: Collection[str], vocabulary: Vocabulary
) -> None:
    """Raise AdapterRefused if a whole module that the configuration replaces is missing."""
    config = folder.config
    for module in known:
        if config.targets.saves(module) and "saved" not in modules.get(module, {}):
            raise AdapterRefused(f"{folder.name_in_file(module)}.weight is missing")
    for name in config.targets.saved:
        if not any(is_within(module, name) for module in modules):
            key = folder.key_in_file("modules_to_save")
            raise AdapterRefused(f"{key} is {list(config.targets.saved)}: there is no tensor of {name}")
    for end, _ in config.tokens:
        ends = [module for module, names in modules.items() if "tokens" in names and module.endswith(end)]
        if not ends:
            key = folder.key_in_file("trainable_token_indices")
            raise AdapterRefused(f"{key}: there is no tensor of {end or vocabulary.embedding}")


def _check_linear(folder: AdapterFolder, part: AdaptedPart, names: Names) -> None:
    if part.is_head and "B" in names:
        _require_tokens(folder, names["B"], 0, part.shape[0])
    if names.keys() & _LOW_RANK:
        _check_matrices(folder, part.module, names, part.shape)
    for kind in names.keys() & _VECTORS:
        require_shape(folder, names[kind], part.shape[:1])
    for kind in names.keys() & {"base", "saved"}:
        if part.is_head:
            _require_tokens(folder, names[kind], 0, part.shape[0])
        require_shape(folder, names[kind], part.shape[::-1] if part.transposed else part.shape)
    if "tokens" in names:
        _check_tokens(folder, names["tokens"], part.shape)
    _refuse_both(folder, names, ("A", "saved", "tokens"))
    refuse_any(folder, names, ("embedding A", "embedding B"))


def _check_embedding(folder: AdapterFolder, vocabulary: Vocabulary, names: Names) -> None:
    """Refuse what does not fit the embeddings of the input."""
    num_tokens, dim = vocabulary.shape
    refuse_any(folder, names, ("A", "B", "low-rank bias", "bias"))
    if names.keys() & {"embedding A", "embedding B", "magnitude"}:
        for kind in ("embedding A", "embedding B"):
            if kind not in names:
                end = kind.replace(" ", "_")
                raise AdapterRefused(f"{folder.name_in_file(vocabulary.embedding)}.lora_{end} is missing")
        _require_tokens(folder, names["embedding A"], 1, num_tokens)
        shape = folder.entries[names["embedding A"]].shape
        rank = shape[0] if len(shape) == 2 else 0
        require_shape(folder, names["embedding A"], (rank, num_tokens))
        require_shape(folder, names["embedding B"], (dim, rank))
        _require_rank(folder, names["embedding A"], rank, num_tokens + dim)
        check_magnitude(folder, vocabulary.embedding, names, dim)
        if folder.config.invocation:
            name = folder.name_in_file(names["embedding A"])
            raise AdapterRefused(f"{name}: it is not supported with alora_invocation_tokens")
    for kind in names.keys() & {"base", "saved"}:
        _require_tokens(folder, names[kind], 0, num_tokens)
        require_shape(folder, names[kind], vocabulary.shape)
    if "tokens" in names:
        _check_tokens(folder, names["tokens"], vocabulary.shape)
    _refuse_both(folder, names, ("embedding A", "saved", "tokens"))


def _check_tokens(folder: AdapterFolder, name: str, shape: tuple[int, int]) -> None:
    tokens = tokens_of(folder, name)
    require_shape(folder, name, (len(tokens), shape[1]))
    if len({*tokens}) < len(tokens) or any(token >= shape[0] for token in tokens):
        key = folder.key_in_file("trainable_token_indices")
        raise AdapterRefused(f"{key}: expected different tokens below {shape[0]}")


def _require_tokens(folder: AdapterFolder, name: str, axis: int, expected: int) -> None:
    """Refuse a vocabulary of another size: that of the base model is everybody's."""
    shape = folder.entries[name].shape
    found = shape[axis] if len(shape) == 2 else expected
    if found != expected:
        difference = f"{abs(found - expected)} {'more' if found > expected else 'fewer'}"
        raise AdapterRefused(
            f"{folder.name_in_file(name)} has shape {list(shape)}: {found} tokens, {difference} than the {expected} of "
            "the model. Tokenizer, grammars and logits are those of the model for all adapters: merge this one into a "
            "model of its own, or train new tokens in rows that the model has"
        )


def tokens_of(folder: AdapterFolder, name: str) -> tuple[int, ...]:
    """The tokens whose rows a tensor of them has."""
    module = name.removesuffix(".token_adapter.trainable_tokens_delta")
    ends = [end for end, _ in folder.config.tokens if end]
    return folder.config.tokens_of(module, is_input=not any(module.endswith(end) for end in ends))


def refuse_any(folder: AdapterFolder, names: Names, kinds: Sequence[str]) -> None:
    """Refuse tensors of these kinds."""
    for kind in kinds:
        if kind in names:
            raise AdapterRefused(
                f"{folder.name_in_file(names[kind])} is of a kind that is not supported there"
            )


def _refuse_both(folder: AdapterFolder, names: Names, kinds: Sequence[str]) -> None:
    found = [names[kind] for kind in kinds if kind in names]
    if len(found) > 1:
        raise AdapterRefused(f"{folder.name_in_file(found[0])}: it is not supported beside {found[1]}")


def _check_matrices(folder: AdapterFolder, module: str, names: Names, shape: tuple[int, int]) -> None:
    for kind in "AB":
        if kind not in names:
            raise AdapterRefused(f"{folder.name_in_file(module)}.lora_{kind}.weight is missing")
    out_features, in_features = shape
    check_magnitude(folder, module, names, out_features)
    down = folder.entries[names["A"]].shape
    rank = down[0] if len(down) == 2 else 0
    require_shape(folder, names["A"], (rank, in_features))
    require_shape(folder, names["B"], (out_features, rank))
    _require_rank(folder, names["A"], rank, in_features + out_features)


def check_magnitude(folder: AdapterFolder, module: str, names: Names, size: int) -> None:
    """Refuse magnitudes without DoRA, DoRA without them, and those of another shape."""
    if folder.config.is_dora != ("magnitude" in names):
        state = "missing" if folder.config.is_dora else "there, but use_dora is not true"
        raise AdapterRefused(f"{folder.name_in_file(module)}.lora_magnitude_vector is {state}")
    if "magnitude" in names:
        require_shape(folder, names["magnitude"], (size,))


def _require_rank(folder: AdapterFolder, name: str, rank: int, largest: int) -> None:
    if not 1 <= rank <= largest:
        raise AdapterRefused(f"{folder.name_in_file(name)} has rank {rank}; expected 1 to {largest}")


def require_shape(folder: AdapterFolder, name: str, expected: tuple[int, ...]) -> None:
    """Refuse a tensor of another shape."""
    shape = folder.entries[name].shape
    if shape != expected:
        raise AdapterRefused(
            f"{folder.name_in_file(name)} has shape {list(shape)}, but the model needs {list(expected)}"
        )


class TensorReader:
    """Reads tensors whose shapes were checked."""

    def __init__(self, folder: AdapterFolder, modules: dict[str, Names], base: BaseWeights) -> None:
        self.folder = folder
        self.modules = modules
        self._base = base
        self._tensors = parse_tensors(folder.content)

    def refused(self, name: str, reason: str) -> AdapterRefused:
        """The error of a tensor."""
        return AdapterRefused(f"{self.folder.name_in_file(name)}: {reason}")

    def numbers(self, name: str) -> torch.Tensor:
        """A tensor in float32, checked. (The file may have changed after its header was read.)"""
        found = self._tensors.get(f"base_model.model.{name}")
        if found is None or tuple(found.shape) != self.folder.entries[name].shape:
            raise self.refused(name, "the file has changed while it was read")
        if not all_finite(found):
            raise AdapterRefused(f"{self.folder.name_in_file(name)} holds numbers that are not finite")
        return found.float()

    def check_base(self, name: str, stored: str) -> None:
        """Refuse an adapter whose copy of the base model's weights is not the base model's."""
        copied = self._tensors[f"base_model.model.{name}"]
        num_rows, num_columns = copied.shape
        if not torch.equal(self.base(name, stored, (num_rows, num_columns)).to(copied.dtype), copied):
            raise self.refused(name, "it differs from the base model's weights, which it should repeat")

    def base(
        self, name: str, stored: str, shape: tuple[int, int], inputs_first: bool = False
    ) -> torch.Tensor:
        """The base model's weights of a module, outputs first, for a tensor of the adapter that needs them."""
        try:
            return self._base.read(stored, shape, inputs_first)
        except StartError as error:
            raise self.refused(name, f"it needs the weights of the base model: {error}") from None
