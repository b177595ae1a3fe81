"""The sampling settings of a model folder: read, refused where they make no sense, and sent to the router."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from penstock_server.base.config import ModelOverrides
from penstock_server.base.errors import StartError
from penstock_server.files.generation_config import (
    GenerationDefaults,
    override_generation_defaults,
    read_generation_defaults,
)
from penstock_server.files.model_folder import open_folder
from penstock_server.rpc.conversion import generation_to_pb


def write(folder: Path, name: str, **values: Any) -> None:
    (folder / name).write_text(json.dumps(values))


def test_every_field_is_read(tmp_path: Path) -> None:
    values: dict[str, Any] = {
        "do_sample": True,
        "temperature": 0.6,
        "top_k": 20,
        "top_p": 0.95,
        "min_p": 0.1,
        "typical_p": 0.9,
        "repetition_penalty": 1.05,
    }
    write(tmp_path, "generation_config.json", eos_token_id=[1, 2], **values)
    assert read_generation_defaults(tmp_path) == GenerationDefaults(**values)


def test_fields_that_are_null_or_missing_are_left_out(tmp_path: Path) -> None:
    write(tmp_path, "generation_config.json", temperature=None, top_p=1)
    known = read_generation_defaults(tmp_path)
    assert known.given() == {"top_p": 1.0}


def test_an_old_folder_has_them_in_its_config(tmp_path: Path) -> None:
    write(tmp_path, "config.json", temperature=0.7, top_k=50)
    assert read_generation_defaults(tmp_path).given() == {"temperature": 0.7, "top_k": 50}
    write(tmp_path, "generation_config.json", top_k=-1)
    assert read_generation_defaults(tmp_path).given() == {"top_k": 0}


WRONG = [
    ("temperature", -1, "a number from 0 to 100"),
    ("temperature", "0.7", "a number from 0 to 100"),
    ("temperature", True, "a number from 0 to 100"),
    ("temperature", float("nan"), "a number from 0 to 100"),
    ("top_p", 0, "a number above 0 and at most 1"),
    ("top_p", 1.5, "a number above 0 and at most 1"),
    ("typical_p", [], "a number above 0 and at most 1"),
    ("min_p", 2, "a number from 0 to 1"),
    ("repetition_penalty", 0, "a number from 0.01 to 100"),
    ("top_k", 1.5, "a whole number from 0 to 2147483647"),
    ("top_k", -2, "a whole number from 0 to 2147483647"),
    ("do_sample", "yes", "true or false"),
]


@pytest.mark.parametrize(("name", "value", "expected"), WRONG)
def test_a_wrong_value_is_one_line(tmp_path: Path, name: str, value: Any, expected: str) -> None:
    write(tmp_path, "generation_config.json", **{name: value})
    with pytest.raises(StartError) as refused:
        read_generation_defaults(tmp_path)
    message = str(refused.value)
    assert message.startswith(
        f"{tmp_path}/generation_config.json: {name} is {value!r}; expected {expected}; "
    )
    assert message.endswith("--generation-config none")
    assert "\n" not in message


def test_a_folder_is_refused_for_them_unless_they_are_not_used(
    saved_model: Callable[..., Any], tmp_path: Path
) -> None:
    for file in saved_model().folder.iterdir():
        (tmp_path / file.name).symlink_to(file)
    (tmp_path / "generation_config.json").unlink()
    write(tmp_path, "generation_config.json", temperature=-1)
    with pytest.raises(StartError, match="temperature"):
        open_folder(tmp_path)
    assert open_folder(tmp_path, generation_config="none").generation is None


def test_a_flag_replaces_single_values() -> None:
    own = GenerationDefaults(do_sample=True, temperature=0.6, top_k=20)
    replaced = override_generation_defaults(own, {"temperature": 1, "top_k": None, "min_p": 0.1})
    assert replaced.given() == {"do_sample": True, "temperature": 1.0, "min_p": 0.1}


@pytest.mark.parametrize(
    ("override", "message"),
    [
        (
            {"temperature": -1},
            "--override-generation-config: temperature is -1; expected a number from 0 to 100",
        ),
        (
            {"temprature": 1},
            "--override-generation-config: temprature is none of the defaults of sampling (do_sample, temperature",
        ),
        ({"max_new_tokens": 9}, "see --default-max-tokens"),
    ],
)
def test_a_wrong_value_of_the_flag_names_the_flag(override: dict[str, Any], message: str) -> None:
    with pytest.raises(StartError) as refused:
        override_generation_defaults(GenerationDefaults(), override)
    assert message in str(refused.value)


def test_the_flag_counts_without_the_file(saved_model: Callable[..., Any]) -> None:
    overrides = ModelOverrides(generation={"top_p": 0.5})
    opened = open_folder(saved_model().folder, generation_config="none", overrides=overrides)
    assert opened.generation == GenerationDefaults(top_p=0.5)


def test_the_router_gets_only_the_known_fields() -> None:
    assert generation_to_pb(None) is None
    sent = generation_to_pb(GenerationDefaults(do_sample=False, top_k=0))
    assert sent is not None
    assert {field.name: value for field, value in sent.ListFields()} == {"do_sample": False, "top_k": 0}
