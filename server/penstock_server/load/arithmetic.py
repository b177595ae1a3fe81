"""How a GPU's library of products adds: chosen once, when a shard starts. Nothing else sets these switches of torch."""

import torch


def choose_arithmetic() -> None:
    """Products of every type are added in float32, so that a token depends less on how cuBLAS divides a sum.

    torch lets cuBLAS add the parts of a product of 16-bit numbers in 16 bits, unless it is told not to. Factors of
    float32 are not rounded to tf32: who asks for that type asks for its precision.
    """
    products = torch.backends.cuda.matmul
    products.allow_bf16_reduced_precision_reduction = False
    products.allow_fp16_reduced_precision_reduction = False
    products.fp32_precision = "ieee"
