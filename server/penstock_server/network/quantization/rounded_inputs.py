"""How rows are rounded that are multiplied by quantized matrices: what the matrices are told while they are read."""

from dataclasses import replace

from penstock_kernels import IntGroups, Quantized
from penstock_kernels.base.quantized import rounding_on_gpu


class Rounding:
    """They are not."""

    def __init__(self, flag: str = "", rows: str = "", matrices: str = "", is_asked: bool = False) -> None:
        """For people: the flag, what rows are rounded to, and the matrices that allow it. `is_asked`: by the user; a
        model without such matrices is refused."""
        self.flag = flag
        self.rows = rows
        self.matrices = matrices
        self.is_asked = is_asked

    def of(self, matrix: Quantized) -> Quantized:
        """The matrix by which rounded rows are multiplied; the same where it does not allow it."""
        return matrix


NOT_ROUNDED = Rounding()


class OnCpu(Rounding):
    """Rounds to whole numbers of 8 or 16 bits."""

    def __init__(self, bits: int, is_asked: bool = False) -> None:
        rows = f"int{bits}"
        super().__init__(
            f"--cpu-activations {rows}", rows, "integers with groups in order, without offsets", is_asked
        )
        self.bits = bits

    def of(self, matrix: Quantized) -> Quantized:
        if not isinstance(matrix, IntGroups) or not matrix.takes_rounded:
            return matrix
        return replace(matrix, input_bits=self.bits)


class OnGpu(Rounding):
    """To what the codes are, whole numbers or floats of 8 bits."""

    def __init__(self) -> None:
        matrices = "floats and integers of 8 bits with groups of 32 or more in order, without zeros"
        super().__init__("--gpu-activations 8bit", "8 bits", matrices, is_asked=True)

    def of(self, matrix: Quantized) -> Quantized:
        return rounding_on_gpu(matrix)
