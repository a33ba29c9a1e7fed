#!/usr/bin/env python3
"""Writes fp8_linear.json: forward and backward of torchao's Float8Linear with tensorwise dynamic scales, on the CPU.

    pip install torch torchao==0.18.0 && make_fp8_linear_golden.py

Inputs are a formula of their index: whole numbers of eight bits times a power of two, so that operands are rounded to
fp8 and sums of products are exact in fp32, in any order. Results are the hexadecimal digits of bf16 numbers,
little-endian.
"""

import json
from pathlib import Path

import numpy as np
import torch
import torchao
from torchao.float8 import CastConfig, Float8LinearConfig
from torchao.float8.float8_linear import Float8Linear

SHAPES = [(32, 48, 16), (5, 16, 33), (1, 7, 3)]  # tokens, inputs, outputs


def numbers(rows, columns, seed, unit):
    i = np.arange(rows * columns, dtype=np.uint64) + np.uint64(1000 * seed + 1)
    whole = ((i * np.uint64(2654435761)) % np.uint64(2**32) // np.uint64(2**24)).astype(np.int64) - 128
    return torch.from_numpy((whole * unit).astype(np.float32)).view(rows, columns).bfloat16()


def hexadecimal(tensor):
    assert tensor.dtype == torch.bfloat16
    return tensor.detach().contiguous().view(torch.uint8).numpy().tobytes().hex()


def case(shape, exact, hybrid):
    tokens, inputs, outputs = shape
    gradient = torch.float8_e5m2 if hybrid else torch.float8_e4m3fn
    config = Float8LinearConfig(emulate=True, round_scales_to_power_of_2=not exact,
                                cast_config_grad_output=CastConfig(target_dtype=gradient))
    linear = torch.nn.Linear(inputs, outputs, dtype=torch.bfloat16)
    linear.weight.data = numbers(outputs, inputs, 2, 2.0**-10)
    linear.bias.data.zero_()  # torchao rounds before it adds one
    layer = Float8Linear.from_float(linear, config)
    x = numbers(tokens, inputs, 1, 2.0**-6).requires_grad_(True)
    y = layer(x)
    y.backward(numbers(tokens, outputs, 4, 2.0**-14))
    return {"tokens": tokens, "inputs": inputs, "outputs": outputs, "exact": exact, "hybrid": hybrid,
            "y": hexadecimal(y), "dx": hexadecimal(x.grad), "dw": hexadecimal(layer.weight.grad),
            "db": hexadecimal(layer.bias.grad)}


def main():
    torch.set_num_threads(1)
    golden = {"source": f"torchao {torchao.__version__}, torch {torch.__version__}",
              "cases": [case(shape, exact, hybrid) for shape in SHAPES for exact in (False, True)
                        for hybrid in (True, False)]}
    Path(__file__).with_name("fp8_linear.json").write_text(json.dumps(golden, indent=0) + "\n")


if __name__ == "__main__":
    main()
