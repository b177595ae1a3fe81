"""How training of an adapter began (`init_lora_weights`), by each name that PEFT has: with PEFT's own files.

Some ways change the weights of the base model. Such an adapter is right on what was left of them only, and is refused;
saved as PEFT converts it, it is an ordinary one.
"""

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from driver import execute_on, make_engine
from penstock_server.base.errors import AdapterRefused

pytest.importorskip("peft")
import peft
from peft_adapters import Adapter
from test_adapters import SIZES, Served, ask, check, load

# PEFT uses names of transformers that are to go, and tells of what the tests do on purpose.
pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning")

TARGETS = ["q_proj", "o_proj", "down_proj"]
PLAIN = [True, False, "gaussian", "eva", "orthogonal", "mica"]
CHANGING = ["pissa", "pissa_niter_4", "olora", "corda", "lora_ga"]
# For these, PEFT decomposes matrices that come from data: here, any matrices of low rank stand for them.
BY_DATA = ["corda", "lora_ga"]


def begun(model: Any, start: str | bool) -> Any:
    """PEFT's model where training begins in this way."""
    way: Any = False if start in BY_DATA else start
    config: Any = peft.LoraConfig(
        task_type="CAUSAL_LM", target_modules=TARGETS, r=4, lora_alpha=6, init_lora_weights=way
    )
    adapted: Any = peft.get_peft_model(copy.deepcopy(model), config)
    if start in BY_DATA:
        for module in adapted.modules():
            if isinstance(module, peft.tuners.lora.Linear):
                weight: Any = module.base_layer.weight
                weight.data -= module.get_delta_weight("default")
    return adapted


def train(adapted: Any) -> None:
    """Change all that training would change, enough to change tokens."""
    torch.manual_seed(3)
    with torch.no_grad():
        for name, parameter in adapted.named_parameters():
            if "lora_" in name:
                parameter.add_(torch.randn_like(parameter), alpha=0.2)


@pytest.mark.parametrize("start", PLAIN)
def test_ways_that_leave_the_base_model_alone_are_ordinary(
    start: str | bool, saved_model: Callable[..., Any], tmp_path: Path
) -> None:
    made = saved_model()
    adapted = begun(made.oracle, start)
    train(adapted)
    adapted.save_pretrained(str(tmp_path))
    merged = Adapter(tmp_path, adapted.merge_and_unload().eval())
    want = ask(Served(made.folder, made.oracle, [merged]))
    engine = make_engine(made.folder, **SIZES)
    check(execute_on(engine), want, load(engine, want.served))


@pytest.mark.parametrize("start", CHANGING)
def test_ways_that_change_it_are_refused_unless_converted(
    start: str, saved_model: Callable[..., Any], tmp_path: Path
) -> None:
    made = saved_model()
    adapted = begun(made.oracle, start)
    config = adapted.peft_config["default"]
    config.init_lora_weights = True
    adapted.save_pretrained(str(tmp_path / "begin"))
    train(adapted)
    adapted.save_pretrained(
        str(tmp_path / "converted"), path_initial_model_for_weight_conversion=str(tmp_path / "begin")
    )
    config.init_lora_weights = start
    adapted.save_pretrained(str(tmp_path / "as-it-is"))
    merged = Adapter(tmp_path / "converted", adapted.merge_and_unload().eval())
    want = ask(Served(made.folder, made.oracle, [merged]))
    engine = make_engine(made.folder, **SIZES)
    check(execute_on(engine), want, load(engine, want.served))
    with pytest.raises(AdapterRefused) as refused:
        engine.slots.adapters.load(tmp_path / "as-it-is", "", "test")
    assert f"init_lora_weights is {start!r}" in str(refused.value)
    assert "path_initial_model_for_weight_conversion" in str(refused.value)


def test_what_peft_cannot_convert_is_refused(saved_model: Callable[..., Any], tmp_path: Path) -> None:
    made = saved_model()
    adapted = begun(made.oracle, True)
    # Its base model is what it was rounded to by a library that the tests do not have.
    adapted.peft_config["default"].init_lora_weights = "loftq"
    adapted.save_pretrained(str(tmp_path))
    with pytest.raises(AdapterRefused, match="init_lora_weights is 'loftq'"):
        make_engine(made.folder, **SIZES).slots.adapters.load(tmp_path, "", "test")
