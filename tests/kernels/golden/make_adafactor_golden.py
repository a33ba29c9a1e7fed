#!/usr/bin/env python3
"""Writes adafactor.json beside this file: five steps of transformers' Adafactor on a few tensors.

Run by hand, with any recent PyTorch and transformers: python3 make_adafactor_golden.py
Everything is computed in float64, from numbers that float32 holds exactly. "steps" has the tensors,
one after the other, after each step, for the same "gradients" in every run.
"""

import json
import pathlib

import torch
import transformers
from transformers.optimization import Adafactor

SHAPES, STEPS = [(6, 10), (7,), (1, 5)], 5
RUNS = [
    dict(learning_rate=0.01, weight_decay=0.1, hyperparameters={}),
    dict(learning_rate=0.05, weight_decay=0.1, hyperparameters=dict(scale_parameter=1)),
    dict(learning_rate=0.01, weight_decay=0.0, hyperparameters=dict(clip_threshold=0.5, decay_rate=0.6)),
    dict(learning_rate=None, weight_decay=0.0, hyperparameters=dict(scale_parameter=1, relative_step=1)),
    dict(learning_rate=None, weight_decay=0.1,
         hyperparameters=dict(relative_step=1, warmup_init=1)),
]


def optimizer_of(run, parameters):
    h = run["hyperparameters"]
    return Adafactor(parameters, lr=run["learning_rate"], weight_decay=run["weight_decay"],
                     clip_threshold=h.get("clip_threshold", 1.0), decay_rate=-h.get("decay_rate", 0.8),
                     scale_parameter=bool(h.get("scale_parameter", 0)),
                     relative_step=bool(h.get("relative_step", 0)),
                     warmup_init=bool(h.get("warmup_init", 0)))


def flat(tensors):
    return torch.cat([tensor.detach().flatten() for tensor in tensors]).tolist()


def steps_of(run, initial, gradients):
    parameters = [tensor.clone().requires_grad_() for tensor in initial]
    optimizer = optimizer_of(run, parameters)
    steps = []
    for step in gradients:
        for parameter, gradient in zip(parameters, step):
            parameter.grad = gradient.clone()
        optimizer.step()
        steps.append(flat(parameters))
    return steps


def main():
    generator = torch.Generator().manual_seed(1)

    def tensors(scale):
        return [(scale * torch.randn(shape, generator=generator)).double() for shape in SHAPES]

    initial = tensors(1.0)
    gradients = [tensors(10.0**-step) for step in range(STEPS)]
    runs = [run | dict(steps=steps_of(run, initial, gradients)) for run in RUNS]
    document = dict(torch=torch.__version__, transformers=transformers.__version__, shapes=SHAPES,
                    initial=flat(initial), gradients=[flat(step) for step in gradients], runs=runs)
    text = json.dumps(document).replace("[[", "[\n[").replace("], [", "],\n[")
    path = pathlib.Path(__file__).parent / "adafactor.json"
    path.write_text(text.replace('{"learning_rate"', '\n{"learning_rate"') + "\n")


if __name__ == "__main__":
    main()
