"""adapter_config.json of PEFT: which modules an adapter changes, and by how much.

Every key that changes numbers is understood here or refused by its name. Ranks are not read: the tensors have them.
"""

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from penstock_server.base.errors import AdapterRefused

# These say how the adapter was trained or made, where it came from, or repeat what the tensors say.
_WITHOUT_EFFECT = {
    "auto_mapping", "base_model_name_or_path", "corda_config", "eva_config", "fan_in_fan_out", "inference_mode",
    "lora_dropout", "lora_ga_config", "loftq_config", "megatron_core", "qalora_group_size", "r",
    "rank_pattern", "revision", "runtime_config",
}  # fmt: skip
_UNDERSTOOD = {
    "alora_invocation_tokens", "alpha_pattern",
    "bias", "exclude_modules", "init_lora_weights", "layers_pattern", "layers_to_transform",
    "lora_alpha", "lora_bias", "modules_to_save", "peft_type", "peft_version", "target_modules",
    "target_parameters", "task_type",
    "trainable_token_indices", "use_dora", "use_rslora",
}  # fmt: skip
# Ways to begin training that leave the weights of the base model as they are.
_PLAIN_STARTS = {"gaussian", "eva", "mica", "orthogonal", "true", "false"}
# The values that a key without effect may have.
_NOTHING: tuple[Any, ...] = (None, False, "", [], {})
_BIASES = ("none", "all", "lora_only")


@dataclass(frozen=True, slots=True)
class Targets:
    """The modules that have matrices of their own, by the rules of PEFT."""

    # Ends of names, or one expression for the whole name, or "all-linear".
    modules: tuple[str, ...] | str
    excluded: tuple[str, ...] | str = ()
    layers: tuple[int, ...] = ()
    layers_patterns: tuple[str, ...] = ()
    saved: tuple[str, ...] = ()

    def has(self, module: str, is_head: bool = False) -> bool:
        """Whether a module is one of them. `is_head`: it makes the logits, which `all-linear` leaves out."""
        if _matches(self.excluded, module) or any(
            re.match(rf"(^|.*\.){re.escape(name)}($|\..*)", module) for name in self.saved
        ):
            return False
        if self.modules == "all-linear":
            return not is_head and self._is_in_layer(module)
        if not _matches(self.modules, module):
            return False
        return isinstance(self.modules, str) or self._is_in_layer(module)

    def saves(self, module: str) -> bool:
        """Whether a module's own tensors are replaced."""
        return any(is_within(module, name) for name in self.saved)

    def _is_in_layer(self, module: str) -> bool:
        if not self.layers:
            return True
        patterns = [rf"(?:^|.*?\.){pattern}\.(\d+)\." for pattern in self.layers_patterns]
        found = (re.match(pattern, module) for pattern in patterns or [r".*?\.[^.]*\.(\d+)\."])
        number = next((match[1] for match in found if match), None)
        return number is not None and int(number) in self.layers


@dataclass(frozen=True, slots=True)
class AdapterConfig:
    """The meaning of the tensors' numbers."""

    targets: Targets
    alpha: float
    # By the end of a module's name, an expression; the first that matches counts.
    alphas: tuple[tuple[str, float], ...]
    by_root: bool
    # Whether biases of the base model are replaced.
    replaces_biases: bool
    is_dora: bool
    # Rows of embeddings and heads that are replaced, by the end of a module's name; "": the embeddings of the input.
    tokens: tuple[tuple[str, tuple[int, ...]], ...]
    # Tokens from whose last occurrence in a prompt on the adapter acts; empty: from the first token on.
    invocation: tuple[int, ...]
    # Ends of the names of parameters that have matrices of their own, such as those of all experts of a layer.
    parameters: tuple[str, ...]
    # The version of PEFT: major and minor; (0, 0) where it is not told.
    peft_version: tuple[int, int]

    def has_parameter(self, name: str) -> bool:
        """Whether a parameter is one of these."""
        return _matches(self.parameters, name)

    def tokens_of(self, module: str, is_input: bool) -> tuple[int, ...]:
        """The tokens whose rows are replaced. `is_input`: the module is the embeddings of the input."""
        found = (tokens for end, tokens in self.tokens if (module.endswith(end) if end else is_input))
        return next(found, ())

    def scale(self, module: str, rank: int) -> float:
        """The factor of the product of a module's matrices."""
        found = (alpha for key, alpha in self.alphas if re.match(rf"(.*\.)?({key})$", module))
        return next(found, self.alpha) / (math.sqrt(rank) if self.by_root else rank)


def parse_config(raw: Any, path: Path) -> AdapterConfig:
    """Check adapter_config.json. Raises AdapterRefused with the key."""
    if not isinstance(raw, dict):
        raise AdapterRefused(f"{path}: it is not a JSON object")
    reader = _Reader(raw, path)
    reader.check_keys()
    return AdapterConfig(
        targets=Targets(
            reader.names("target_modules", may_be_pattern=True),
            reader.names("exclude_modules", may_be_pattern=True),
            reader.whole_numbers("layers_to_transform"),
            reader.expressions("layers_pattern"),
            tuple(reader.names("modules_to_save")),
        ),
        alpha=reader.number("lora_alpha", raw.get("lora_alpha", 8)),
        alphas=tuple(reader.alphas()),
        by_root=reader.flag("use_rslora"),
        replaces_biases=reader.bias() != "none",
        is_dora=reader.flag("use_dora"),
        tokens=tuple(reader.tokens()),
        invocation=reader.whole_numbers("alora_invocation_tokens"),
        parameters=tuple(reader.names("target_parameters")),
        peft_version=reader.version("peft_version"),
    )


class _Reader:
    """Typed look-ups; every error names the file and the key."""

    def __init__(self, raw: dict[str, Any], path: Path) -> None:
        self.raw = raw
        self.path = path

    def refused(self, key: str, reason: str) -> AdapterRefused:
        shown = repr(self.raw.get(key))
        return AdapterRefused(f"{self.path}: {key} is {shown[:100]}: {reason}")

    def check_keys(self) -> None:
        """Refuse what is no LoRA adapter of a causal model, and what is not known."""
        if self.raw.get("peft_type") != "LORA":
            raise self.refused("peft_type", "only LORA is supported")
        if self.raw.get("task_type") not in (None, "CAUSAL_LM"):
            raise self.refused("task_type", "only CAUSAL_LM is supported")
        if self.flag("use_dora") and self.flag("lora_bias"):
            raise self.refused("lora_bias", "PEFT has none with use_dora")
        for key in ("modules_to_save", "trainable_token_indices"):
            if self.raw.get(key) and self.raw.get("alora_invocation_tokens"):
                raise self.refused(key, "it is not supported with alora_invocation_tokens")
        start = self.raw.get("init_lora_weights", True)
        if str(start).lower() not in _PLAIN_STARTS:
            raise self.refused(
                "init_lora_weights",
                "training began by changing the base model's weights; save the adapter with "
                "path_initial_model_for_weight_conversion, which makes it an ordinary one",
            )
        for key, value in self.raw.items():
            if key not in _WITHOUT_EFFECT | _UNDERSTOOD and value not in _NOTHING:
                raise self.refused(key, "it is not supported, and would change the result")

    def flag(self, key: str) -> bool:
        value = self.raw.get(key)
        if value not in (None, True, False):
            raise self.refused(key, "expected true or false")
        return bool(value)

    def bias(self) -> str:
        value = self.raw.get("bias") or "none"
        if value not in _BIASES:
            raise self.refused("bias", f"expected one of {', '.join(_BIASES)}")
        return str(value)

    def number(self, key: str, value: Any) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < 1e9:
            raise self.refused(key, "expected a number")
        return float(value)

    def alphas(self) -> Iterable[tuple[str, float]]:
        patterns = self.raw.get("alpha_pattern") or {}
        if not isinstance(patterns, dict):
            raise self.refused("alpha_pattern", "expected an object")
        for key, value in patterns.items():
            yield self._expression("alpha_pattern", key), self.number("alpha_pattern", value)

    def tokens(self) -> Iterable[tuple[str, tuple[int, ...]]]:
        """`trainable_token_indices`: a list for the embeddings of the input, or one for each module."""
        key = "trainable_token_indices"
        by_module = self.raw.get(key) or {}
        if isinstance(by_module, list):
            by_module = {"": by_module}
        if not isinstance(by_module, dict):
            raise self.refused(key, "expected a list of tokens, or an object of such lists")
        for end, tokens in by_module.items():
            if not isinstance(tokens, list) or not all(_is_whole(token) for token in tokens):
                raise self.refused(key, "expected whole numbers")
            yield end, tuple(tokens)

    def names(self, key: str, may_be_pattern: bool = False) -> tuple[str, ...] | str:
        """A list of names, or one expression."""
        value = self.raw.get(key) or []
        if isinstance(value, str):
            if not may_be_pattern:
                return (self._expression(key, value),)
            return value if value == "all-linear" else self._expression(key, value)
        if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
            raise self.refused(key, "expected a list of names")
        return tuple(value)

    def expressions(self, key: str) -> tuple[str, ...]:
        """One, or a list of them."""
        return tuple(self._expression(key, text) for text in self.names(key))

    def version(self, key: str) -> tuple[int, int]:
        """Its first two numbers."""
        found = re.match(r"(\d+)\.(\d+)", str(self.raw.get(key)))
        return (int(found[1]), int(found[2])) if found else (0, 0)

    def whole_numbers(self, key: str) -> tuple[int, ...]:
        """One, or a list of them."""
        value = self.raw.get(key)
        numbers = [] if value is None else value if isinstance(value, list) else [value]
        if not all(_is_whole(number) for number in numbers):
            raise self.refused(key, "expected whole numbers")
        return tuple(numbers)

    def _expression(self, key: str, text: str) -> str:
        try:
            re.compile(text)
        except (re.error, RecursionError) as error:
            raise self.refused(key, f"no valid expression: {error}") from None
        return text


def is_within(module: str, end: str) -> bool:
    """Whether a module, or one that it is a part of, has a name that ends so."""
    return re.search(rf"{re.escape(end)}($|\.)", module) is not None


def _is_whole(number: Any) -> bool:
    return type(number) is int and 0 <= number < 2**31


def _matches(names: tuple[str, ...] | str, module: str) -> bool:
    if isinstance(names, str):
        return bool(names) and re.fullmatch(names, module) is not None
    return any(module == name or module.endswith(f".{name}") for name in names)
