#!/usr/bin/env python3
"""Records what `accelerate estimate-memory` says of the sizes of GPT-2.

    python3 -m venv venv && venv/bin/pip install accelerate torch
    venv/bin/python tests/cli/make_estimate_golden.py

Its own function counts a tree of modules with GPT-2's names and shapes, on the meta device, so that
nothing is downloaded. The result is estimate_golden.json; estimate_command_test.cpp holds our table
to it.
"""

import json
import pathlib
from types import SimpleNamespace

import accelerate
import torch
from accelerate.commands import estimate
from torch import nn

DTYPES = ("float32", "float16", "int8", "int4")
VOCABULARY, CONTEXT = 50257, 1024
SIZES = {"gpt2": (12, 768), "gpt2-medium": (24, 1024), "gpt2-large": (36, 1280), "gpt2-xl": (48, 1600)}


class GPT2Block(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attn = nn.ModuleDict(
            {"c_attn": nn.Linear(width, 3 * width), "c_proj": nn.Linear(width, width)}
        )
        self.mlp = nn.ModuleDict(
            {"c_fc": nn.Linear(width, 4 * width), "c_proj": nn.Linear(4 * width, width)}
        )


class GPT2(nn.Module):
    _no_split_modules = ["GPT2Block"]

    def __init__(self, layers: int, width: int):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(VOCABULARY, width), nn.Embedding(CONTEXT, width)
        self.h = nn.ModuleList(GPT2Block(width) for _ in range(layers))
        self.ln_f = nn.LayerNorm(width)
        self.lm_head = nn.Linear(width, VOCABULARY, bias=False)
        self.lm_head.weight = self.wte.weight


def create_model(name: str, **_) -> nn.Module:
    with torch.device("meta"):
        return GPT2(*SIZES[name])


def main() -> None:
    estimate.create_empty_model = create_model
    golden = {"accelerate": accelerate.__version__, "models": {}}
    for name in SIZES:
        arguments = SimpleNamespace(
            model_name=name, library_name=None, trust_remote_code=False, dtypes=DTYPES
        )
        golden["models"][name] = {
            dtype: {"largest_layer_bytes": largest, "total_bytes": total,
                    "training_bytes": max(training.values())}
            for dtype, largest, total, training in estimate.gather_data(arguments)
        }
    target = pathlib.Path(__file__).resolve().parent / "estimate_golden.json"
    target.write_text(json.dumps(golden, indent=1) + "\n")
    print(target)


if __name__ == "__main__":
    main()
