#!/usr/bin/env python3
"""Writes loss_scales.json beside this file: the scale of each step by the scalers of others.

Run by hand, with any recent PyTorch and DeepSpeed: python3 make_loss_scale_golden.py
Each run names the steps that overflow; "scales" has the scale that each step is taken with, and
after the last step one more. "error": the step whose overflow ends the run. DeepSpeed's and
torch's are the real classes; Megatron's is a copy of the two branches of DynamicGradScaler.update
(megatron/core/optimizer/grad_scaler.py), which cannot be imported without Apex.
"""

import json
import pathlib

import torch
from deepspeed.runtime.fp16 import loss_scaler as deepspeed_scaler

RUNS = [
    # first growth; overflows that follow each other; one just before the window ends
    dict(dialect="torch", initial=65536, window=3, overflows=[0, 1, 6, 12], steps=24),
    dict(dialect="torch", initial=1024, window=2, growth_factor=4, backoff_factor=0.25,
         overflows=[3, 4, 9], steps=16),
    dict(dialect="torch", initial=2.0**126, window=1, overflows=[5], steps=8),
    dict(dialect="deepspeed", initial=65536, window=3, minimum=1, hysteresis=2,
         overflows=[0, 1, 2, 10, 18, 19], steps=30),
    dict(dialect="deepspeed", initial=65536, window=4, minimum=1, hysteresis=1,
         overflows=[2, 3, 12], steps=24),
    dict(dialect="deepspeed", initial=65536, window=3, minimum=1, hysteresis=2,
         consecutive_hysteresis=True, overflows=[0, 2, 3, 4, 6, 13, 14], steps=24),
    dict(dialect="deepspeed", initial=8, window=3, minimum=2, hysteresis=2,
         overflows=[0, 1, 2, 3, 4, 5], steps=8),
    dict(dialect="megatron", initial=2.0**32, window=3, minimum=1, hysteresis=2,
         overflows=[0, 1, 2, 10, 18, 19], steps=30),
    dict(dialect="megatron", initial=8, window=3, minimum=2, hysteresis=3,
         overflows=[0, 1, 2, 3, 4, 5, 6], steps=16),
]


def torch_scales(run):
    parameter = torch.zeros(1, requires_grad=True)
    optimizer = torch.optim.SGD([parameter], lr=0.0)
    scaler = torch.amp.GradScaler(
        "cpu", init_scale=run["initial"], growth_interval=run["window"],
        growth_factor=run.get("growth_factor", 2), backoff_factor=run.get("backoff_factor", 0.5))
    scaler.scale(torch.zeros(1))  # makes its state
    for step in range(run["steps"]):
        yield scaler.get_scale()
        parameter.grad = torch.full((1,), float("inf") if step in run["overflows"] else 1.0)
        scaler.step(optimizer)
        scaler.update()
    yield scaler.get_scale()


def deepspeed_scales(run):
    deepspeed_scaler.dist.get_rank = lambda: 0
    scaler = deepspeed_scaler.DynamicLossScaler(
        init_scale=run["initial"], scale_window=run["window"], min_scale=run["minimum"],
        delayed_shift=run["hysteresis"],
        consecutive_hysteresis=run.get("consecutive_hysteresis", False))
    for step in range(run["steps"]):
        yield scaler.loss_scale
        scaler.update_scale(step in run["overflows"])
    yield scaler.loss_scale


def megatron_scales(run):
    scale, growth, hysteresis = run["initial"], 0, run["hysteresis"]
    for step in range(run["steps"]):
        yield scale
        if step in run["overflows"]:
            growth = 0
            hysteresis -= 1
            if hysteresis <= 0:
                scale = max(scale * 0.5, run["minimum"])
        else:
            growth += 1
            if growth == run["window"]:
                growth = 0
                hysteresis = run["hysteresis"]
                scale = scale * 2.0
    yield scale


def with_scales(run):
    scales = []
    of_dialect = dict(torch=torch_scales, deepspeed=deepspeed_scales, megatron=megatron_scales)
    try:
        for scale in of_dialect[run["dialect"]](run):
            scales.append(float(scale))
    except Exception as error:  # DeepSpeed raises a plain Exception at its minimum
        assert "already at minimum" in str(error), error
        return run | dict(error=len(scales) - 1, scales=scales)
    return run | dict(scales=scales)


def main():
    document = dict(torch=torch.__version__, runs=[with_scales(run) for run in RUNS])
    text = json.dumps(document).replace('{"dialect"', '\n{"dialect"')
    path = pathlib.Path(__file__).parent / "loss_scales.json"
    path.write_text(text + "\n")


if __name__ == "__main__":
    main()
