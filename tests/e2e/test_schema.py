"""Requests made up from the OpenAPI document: whatever is sent, the server never fails."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import schemathesis
from e2e.launched import Launched
from e2e.models import make_model
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis import Case
from schemathesis.checks import not_a_server_error
from schemathesis.core.result import Ok

_DOCUMENT = schemathesis.openapi.from_path(Path(__file__).resolve().parents[2] / "docs" / "openapi.json")
_OPERATIONS = {
    found.ok().label: found.ok() for found in _DOCUMENT.get_all_operations() if isinstance(found, Ok)
}


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server whose answers are short."""
    model = make_model(tmp_path_factory.mktemp("model"))
    flags = (f"--model-id={model}", "--dtype=float32", "--max-total-tokens=64")
    with Launched(tmp_path_factory.mktemp("run"), *flags) as launched:
        launched.wait_until_serving()
        assert launched.address
        yield "http://{}:{}".format(*launched.address)


@pytest.mark.parametrize("label", _OPERATIONS)
def test_no_request_makes_the_server_fail(url: str, label: str) -> None:
    @settings(
        max_examples=30,
        deadline=None,
        derandomize=True,
        database=None,
        phases=(Phase.explicit, Phase.generate),
        suppress_health_check=list(HealthCheck),
    )
    @given(case=_OPERATIONS[label].as_strategy())
    def check(case: Case[Any]) -> None:
        case.call_and_validate(base_url=url, checks=[not_a_server_error], timeout=60)

    check()
