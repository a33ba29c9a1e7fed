#!/usr/bin/env python3
"""Writes quantized.json: weights as bitsandbytes quantises and dequantises them on the CPU.

    pip install torch bitsandbytes==0.50.2 && make_quantized_golden.py

Numbers are the hexadecimal digits of their bytes, little-endian: fp32 inputs, scales and weights. Of "double cases",
whose scales are quantised, inputs are a formula, and codes, codes of scales and weights are FNV-1a hashes.
"""

import json
from pathlib import Path

import bitsandbytes
import bitsandbytes.functional as F
import numpy as np
import torch


def hexadecimal(tensor):
    return tensor.contiguous().view(torch.uint8).numpy().tobytes().hex()


def inputs(rows, columns, half, seed):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, columns, generator=generator) * 0.02
    if rows * columns > 128:
        x.view(-1)[64:128] = 0.0  # a block of zeros
    return x.bfloat16().float() if half else x


def four_bits(x, kind):
    packed, state = F.quantize_4bit(x, blocksize=64, quant_type=kind)
    weights = F.dequantize_4bit(packed, state)
    return packed.flatten(), state.absmax, weights


def eight_bits(x, _):
    # As Int8Params does, weights are rounded to fp16 first.
    codes, scales, _ = F.int8_vectorwise_quant(x.half())
    return codes.flatten(), scales, F.int8_vectorwise_dequant(codes, scales)


def fnv(tensor):
    value = 0xcbf29ce484222325
    for byte in tensor.contiguous().view(torch.uint8).numpy().tobytes():
        value = (value ^ byte) * 0x100000001b3 % 2**64
    return f"{value:016x}"


def formula(rows, columns):
    """Numbers in (-0.035, 0.035), with other magnitudes from block to block."""
    i = np.arange(rows * columns, dtype=np.uint64)
    unit = ((i * np.uint64(2654435761)) % np.uint64(2**32) // np.uint64(256)).astype(np.float32) * np.float32(2**-24)
    magnitude = (1 + i // np.uint64(64) % np.uint64(7)).astype(np.float32) * np.float32(0.01)
    return torch.from_numpy((unit - np.float32(0.5)) * magnitude).view(rows, columns)


def one_zero(codes, kind):
    """fp4 has two codes of zero, 0 and 8; bitsandbytes' devices differ in which of them they write."""
    if kind == "nf4":
        return codes
    high, low = codes >> 4, codes & 15
    return torch.where(high == 8, 0, high) << 4 | torch.where(low == 8, 0, low)


def double_case(kind, rows, columns):
    packed, state = F.quantize_4bit(formula(rows, columns), blocksize=64, quant_type=kind, compress_statistics=True)
    return {"format": f"{kind}-double", "rows": rows, "columns": columns, "codes": fnv(one_zero(packed.flatten(), kind)),
            "mean": hexadecimal(state.offset.view(1)), "groups": hexadecimal(state.state2.absmax),
            "scale codes": fnv(state.absmax), "weights": fnv(F.dequantize_4bit(packed, state) + 0.0)}


def main():
    torch.set_num_threads(1)
    cases = []
    for kind, quantise in (("nf4", four_bits), ("fp4", four_bits), ("int8", eight_bits)):
        for seed, (rows, columns) in enumerate([(1, 1), (1, 63), (1, 64), (5, 13), (3, 100), (6, 64), (2, 96)]):
            for half in (False, True):
                x = inputs(rows, columns, half, 100 * seed + half)
                codes, scales, weights = quantise(x, kind)
                cases.append({"format": kind, "rows": rows, "columns": columns, "input": hexadecimal(x),
                              "codes": hexadecimal(codes), "scales": hexadecimal(scales.float()),
                              "weights": hexadecimal(weights.float())})
    golden = {"source": f"bitsandbytes {bitsandbytes.__version__}, torch {torch.__version__}",
              "tables": {kind: hexadecimal(F.get_4bit_type(kind, device="cpu")) for kind in ("nf4", "fp4")},
              "dynamic maps": {"signed": hexadecimal(F.create_dynamic_map(signed=True)),
                               "unsigned": hexadecimal(F.create_dynamic_map(signed=False))},
              "cases": cases,
              "double cases": [double_case(kind, rows, columns) for kind in ("nf4", "fp4")
                               for rows, columns in ((1, 1), (5, 13), (6, 64), (71, 256), (300, 1100), (1024, 2048))]}
    path = Path(__file__).with_name("quantized.json")
    path.write_text(json.dumps(golden, indent=0) + "\n")


if __name__ == "__main__":
    main()
