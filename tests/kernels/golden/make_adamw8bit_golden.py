#!/usr/bin/env python3
"""Writes adamw8bit.json: numbers as bitsandbytes encodes them in 8 bits, and steps of its AdamW8bit.

    pip install torch bitsandbytes==0.50.2 && make_adamw8bit_golden.py

bitsandbytes runs without its compiled library, by its default backend: the library's code for CPUs (0.50.2) does not
always find the nearest code, which is what GPUs have. The default backend divides in a tensor's last block if that is
short, where others multiply by the reciprocal: so numbers to encode are given in whole blocks. Numbers are the
hexadecimal digits of their bytes, little-endian, fp32 or codes.
"""

import ctypes
import json
from pathlib import Path


def no_library(*_):
    raise OSError("to run by the default backend")


load_library, ctypes.cdll.LoadLibrary = ctypes.cdll.LoadLibrary, no_library
import bitsandbytes  # noqa: E402
ctypes.cdll.LoadLibrary = load_library
import bitsandbytes.functional as F  # noqa: E402
import torch  # noqa: E402

BLOCK, NUMEL, STEPS = 256, 300, 12


def hexadecimal(tensor):
    return tensor.contiguous().view(torch.uint8).numpy().tobytes().hex()


def numbers(code, signed):
    """Six blocks: normal ones, of all decades, half way between codes, two small ones, zeros."""
    generator = torch.Generator().manual_seed(7)
    normal = torch.randn(BLOCK, generator=generator) * 1e-3
    decades = torch.randn(BLOCK, generator=generator) * 10 ** (-8 * torch.rand(BLOCK, generator=generator))
    half_way = torch.cat([(code[:-1] + code[1:]) / 2, torch.ones(1)])
    smallest = torch.randn(BLOCK, generator=generator)
    blocks = [normal, decades, half_way, smallest * 1e-36, smallest * 1e-40, torch.zeros(BLOCK)]
    x = torch.cat(blocks).float()
    return x if signed else x.abs()


def codes():
    cases = {}
    for name, signed in (("signed", True), ("unsigned", False)):
        code = F.create_dynamic_map(signed=signed)
        x = numbers(code, signed)
        found, absmax = torch.ops.bitsandbytes.quantize_blockwise(x, code, BLOCK)
        values = torch.ops.bitsandbytes.dequantize_blockwise(found, absmax, code, BLOCK, torch.float32)
        cases[name] = {"input": hexadecimal(x), "codes": hexadecimal(found), "absmax": hexadecimal(absmax),
                       "values": hexadecimal(values)}
    return cases


def run():
    generator = torch.Generator().manual_seed(8)
    parameter = torch.nn.Parameter(torch.randn(NUMEL, generator=generator) * 0.1)
    settings = {"learning_rate": 0.01, "weight_decay": 0.1, "beta1": 0.9, "beta2": 0.95, "epsilon": 1e-8}
    optimizer = bitsandbytes.optim.AdamW8bit([parameter], lr=0.01, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1,
                                             min_8bit_size=0)
    sizes = torch.exp(2 * torch.randn(NUMEL, generator=generator))  # of gradients, by element
    result = settings | {"initial": hexadecimal(parameter.detach()), "gradients": [], "steps": []}
    for _ in range(STEPS):
        parameter.grad = 1e-2 * sizes * torch.randn(NUMEL, generator=generator)
        result["gradients"].append(hexadecimal(parameter.grad))
        optimizer.step()
        result["steps"].append(hexadecimal(parameter.detach()))
    state = optimizer.state[parameter]
    return result | {"first codes": hexadecimal(state["state1"]), "second codes": hexadecimal(state["state2"])}


def main():
    golden = {"source": f"bitsandbytes {bitsandbytes.__version__}, torch {torch.__version__}", "codes": codes(),
              "run": run()}
    path = Path(__file__).with_name("adamw8bit.json")
    path.write_text(json.dumps(golden, indent=0) + "\n")


if __name__ == "__main__":
    main()
