"""A sample of the classes of transformers comes to what is written down of all of them."""

import every_class
import pytest
import transformers

WRITTEN = every_class.read()
SAMPLE = ("biogpt", "diffllama", "gpt_neo", "jamba", "mamba", "mpt", "xglm", "youtu")


@pytest.mark.parametrize("name", SAMPLE)
def test_what_is_written_of_a_class_holds(name: str) -> None:
    assert every_class.outcome(name) == WRITTEN.outcomes[name]


def test_every_class_of_that_version_is_written_down() -> None:
    if WRITTEN.version == transformers.__version__:
        assert set(WRITTEN.outcomes) == set(every_class.classes())
    served = [found for found in WRITTEN.outcomes.values() if every_class.is_served(found)]
    assert len(served) >= 0.9 * len(WRITTEN.outcomes)
