#!/usr/bin/env python3
"""Writes fp8.json: conversions to and from fp8 by CUDA's own functions, compiled for the host, and scales of torchao.

    pip install torch torchao==0.18.0 && make_fp8_golden.py --cuda /usr/local/cuda

Numbers are the hexadecimal digits of their bytes. "values" are the 256 codes as little-endian fp32 words, but for NaN,
whose words are 0. "codes" is the FNV-1a hash of the codes of all 65536 bf16 numbers in the order of their bits, NaN
among them; "runs" lists those codes as [code, how many numbers in a row]. torch's and ml_dtypes' conversions must agree
with CUDA's, or nothing is written.
"""

import argparse
import json
import subprocess
import tempfile
from pathlib import Path

import ml_dtypes
import numpy as np
import torch
import torchao
from torchao.float8.float8_utils import amax_to_scale

SOURCE = """
#include <cuda_fp8.h>
#include <cstdio>
#include <cstring>
int main(int, char** argv) {
  const auto kind = std::strcmp(argv[1], "e4m3") == 0 ? __NV_E4M3 : __NV_E5M2;
  for (unsigned word = 0; word < 65536; ++word) {
    const unsigned bits = word << 16;
    float value;
    std::memcpy(&value, &bits, 4);
    std::putchar(__nv_cvt_float_to_fp8(value, __NV_SATFINITE, kind));
  }
  for (unsigned code = 0; code < 256; ++code) {
    const __half_raw half = __nv_cvt_fp8_to_halfraw(code, kind);
    std::fwrite(&half.x, 2, 1, stdout);
  }
}
"""
FORMATS = {"e4m3": (torch.float8_e4m3fn, ml_dtypes.float8_e4m3fn, 448.0),
           "e5m2": (torch.float8_e5m2, ml_dtypes.float8_e5m2, 57344.0)}


def by_cuda(program, name):
    data = subprocess.run([program, name], check=True, capture_output=True).stdout
    codes = np.frombuffer(data[:65536], np.uint8)
    return codes, np.frombuffer(data[65536:], np.float16).astype(np.float32)


def check(name, codes, values):
    torch_type, numpy_type, largest = FORMATS[name]
    numbers = (np.arange(65536, dtype=np.uint32) << 16).view(np.float32)
    clamped = np.clip(numbers, -largest, largest)
    known = ~np.isnan(numbers)
    by_torch = torch.from_numpy(clamped).to(torch_type).view(torch.uint8).numpy()
    by_numpy = clamped.astype(numpy_type).view(np.uint8)
    assert (codes[known] == by_torch[known]).all() and (codes[known] == by_numpy[known]).all()
    all_codes = np.arange(256, dtype=np.uint8)
    np.testing.assert_array_equal(values, all_codes.view(numpy_type).astype(np.float32))
    np.testing.assert_array_equal(values, torch.from_numpy(all_codes).view(torch_type).float().numpy())


def fnv(data):
    value = 0xcbf29ce484222325
    for byte in data:
        value = (value ^ byte) * 0x100000001b3 % 2**64
    return f"{value:016x}"


def runs(codes):
    result = []
    for code in codes.tolist():
        if result and result[-1][0] == code:
            result[-1][1] += 1
        else:
            result.append([code, 1])
    return result


def scales(name):
    """Of magnitudes in bf16 from 2^-36 to the largest: [word of amax, exact scale, power of two]."""
    generator = torch.Generator().manual_seed(1)
    words = torch.cat([torch.randint(0x2D80, 0x7F80, (200,), generator=generator),
                       torch.tensor([0x3F80, 0x3FE0, 0x3FDF, 0x3FE1, 0x43E0, 0x4760, 0x7F7F])]).int()
    rows = []
    for word in words.tolist():
        amax = torch.tensor([word << 16], dtype=torch.int32).view(torch.float32)
        rows.append([word << 16] + [int(amax_to_scale(amax, FORMATS[name][0], rounded).view(torch.int32))
                                    for rounded in (False, True)])
    return rows


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--cuda", default="/usr/local/cuda")
    args = parser.parse_args()
    golden = {"source": f"cuda_fp8.h, torchao {torchao.__version__}, torch {torch.__version__}, "
                        f"ml_dtypes {ml_dtypes.__version__}"}
    with tempfile.TemporaryDirectory() as folder:
        source, program = Path(folder) / "codes.cpp", Path(folder) / "codes"
        source.write_text(SOURCE)
        subprocess.run(["g++", "-O1", "-I", f"{args.cuda}/include", str(source), "-o", str(program)], check=True)
        for name in FORMATS:
            codes, values = by_cuda(str(program), name)
            check(name, codes, values)
            golden[name] = {"values": np.nan_to_num(values, nan=0.0, posinf=np.inf, neginf=-np.inf).tobytes().hex(),
                            "codes": fnv(codes.tobytes()), "runs": runs(codes), "scales": scales(name)}
    Path(__file__).with_name("fp8.json").write_text(json.dumps(golden) + "\n")


if __name__ == "__main__":
    main()
