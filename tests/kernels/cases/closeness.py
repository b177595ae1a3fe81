"""How near a kernel must come to its reference, which is given the same rounded inputs and computes in float64."""

import torch

DTYPES = [torch.float32, torch.float16, torch.bfloat16]
TOLERANCE = {torch.float32: 2e-6, torch.float16: 1.5e-3, torch.bfloat16: 1.2e-2, torch.float8_e4m3fn: 8e-2}


def assert_close(found: torch.Tensor, expected: torch.Tensor, slack: float = 1.0) -> None:
    """Relative error of the whole, and no single number far off. NaN never passes."""
    assert found.shape == expected.shape
    if found.numel() == 0:
        return
    tolerance = TOLERANCE[found.dtype] * slack
    difference = (found.double() - expected.double()).abs()
    norm = expected.double().norm()
    assert difference.norm() <= tolerance * norm, f"relative error {difference.norm() / norm:.3g}"
    assert difference.max() <= 4 * tolerance * (1 + expected.double().abs().max()), (
        f"off by {difference.max():.3g}"
    )
