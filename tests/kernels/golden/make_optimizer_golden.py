#!/usr/bin/env python3
"""Writes optimizers.json beside this file: ten steps of PyTorch's optimizers on a few numbers.

Run by hand, with any recent PyTorch: python3 make_optimizer_golden.py
Everything is computed in float64, from numbers that float32 holds exactly. "steps" has the
parameters after each step, for the same "gradients" in every run.
"""

import json
import pathlib

import torch

NUMEL, STEPS = 7, 10
RUNS = [
    dict(optimizer="sgd", learning_rate=0.1, weight_decay=0.0, hyperparameters={}),
    dict(optimizer="sgd", learning_rate=0.1, weight_decay=0.05, hyperparameters={}),
    dict(optimizer="sgd", learning_rate=0.05, weight_decay=0.0, hyperparameters=dict(momentum=0.9)),
    dict(optimizer="sgd", learning_rate=0.05, weight_decay=0.1, hyperparameters=dict(momentum=0.9)),
    dict(optimizer="sgd", learning_rate=0.05, weight_decay=0.1,
         hyperparameters=dict(momentum=0.9, nesterov=1)),
    dict(optimizer="adamw", learning_rate=0.01, weight_decay=0.1,
         hyperparameters=dict(beta1=0.9, beta2=0.95, epsilon=1e-8)),
]


def optimizer_of(run, parameter):
    h = run["hyperparameters"]
    common = dict(lr=run["learning_rate"], weight_decay=run["weight_decay"])
    if run["optimizer"] == "sgd":
        return torch.optim.SGD([parameter], momentum=h.get("momentum", 0),
                               nesterov=bool(h.get("nesterov", 0)), **common)
    return torch.optim.AdamW([parameter], betas=(h["beta1"], h["beta2"]), eps=h["epsilon"], **common)


def steps_of(run, initial, gradients):
    parameter = initial.clone().requires_grad_()
    optimizer = optimizer_of(run, parameter)
    steps = []
    for gradient in gradients:
        parameter.grad = gradient.clone()
        optimizer.step()
        steps.append(parameter.detach().tolist())
    return steps


def main():
    generator = torch.Generator().manual_seed(1)
    initial = torch.randn(NUMEL, generator=generator).double()
    gradients = torch.randn(STEPS, NUMEL, generator=generator).double()
    runs = [run | dict(steps=steps_of(run, initial, gradients)) for run in RUNS]
    document = dict(torch=torch.__version__, initial=initial.tolist(),
                    gradients=gradients.tolist(), runs=runs)
    text = json.dumps(document).replace("[[", "[\n[").replace("], [", "],\n[")
    path = pathlib.Path(__file__).parent / "optimizers.json"
    path.write_text(text.replace('{"optimizer"', '\n{"optimizer"') + "\n")


if __name__ == "__main__":
    main()
