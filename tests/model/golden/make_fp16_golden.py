#!/usr/bin/env python3
"""Writes gpt2_fp16.json and gpt2_fp16.bin beside this file: fp16 training of make_gpt2_golden.py's
GPT-2 by PyTorch, with its GradScaler.

Run by hand, with any recent PyTorch: python3 make_fp16_golden.py
Masters, moments and the loss are fp32; parameters, activations and gradients fp16. The scale starts
so high that steps overflow, and its window is so short that it grows into overflows again.
The batches and initial parameters are those of gpt2.json. Format and units are as there:
  scales               (steps) the scale that each step is taken with
  skipped              (steps) int32, 1 where an element of a gradient is not finite
  step_loss            (steps)
  step_gradient_norm   (steps) before clipping; 0 of a skipped step
  final/<parameter>    the masters after all steps
All but the first two are of the same steps in float64, those skipped that fp16 skips; "fp16_error" is
how far PyTorch's fp16 is from them (largest difference over largest magnitude).
"""

import json
import pathlib
import struct

import torch

from golden_file import relative_error
from make_gpt2_golden import BATCH, CONFIG, LENGTH, OPTIMIZER, STEPS, forward, initial_parameters, loss_of

SCALER = dict(initial=2.0**21, window=4)


def batches():
    """Those of gpt2.json: drawn in the same order from the same seed."""
    generator = torch.Generator().manual_seed(1)
    initial = initial_parameters(generator)
    shape = (STEPS, BATCH, LENGTH)
    tokens = torch.randint(CONFIG["vocab_size"], shape, generator=generator)
    targets = (tokens * 7 + 3) % CONFIG["vocab_size"]
    targets[torch.rand(shape, generator=generator) < 0.1] = -1
    return initial, tokens, targets


def make_optimizer(parameters):
    groups = [
        dict(params=[w for w in parameters if w.dim() >= 2],
             weight_decay=OPTIMIZER["weight_decay"]),
        dict(params=[w for w in parameters if w.dim() < 2], weight_decay=0.0),
    ]
    return torch.optim.AdamW(groups, lr=OPTIMIZER["learning_rate"], eps=OPTIMIZER["epsilon"],
                             betas=(OPTIMIZER["beta1"], OPTIMIZER["beta2"]))


def run_fp16(initial, tokens, targets):
    masters = {n: w.float().clone().requires_grad_() for n, w in initial.items()}
    optimizer = make_optimizer(list(masters.values()))
    scaler = torch.amp.GradScaler("cpu", init_scale=SCALER["initial"],
                                  growth_interval=SCALER["window"])
    losses, norms, scales, skipped, largest = [], [], [], [], []
    for step in range(STEPS):
        halves = {n: w.detach().half().requires_grad_() for n, w in masters.items()}
        loss = loss_of(forward(halves, tokens[step]).float(), targets[step], "mean")
        scales.append(scaler.get_scale())
        scaler.scale(loss).backward()
        for name, master in masters.items():
            master.grad = halves[name].grad.float()
        largest.append(max(w.grad.abs().max().item() for w in masters.values()))
        scaler.unscale_(optimizer)
        norm = torch.nn.utils.clip_grad_norm_(masters.values(), OPTIMIZER["clip_norm"]).item()
        scaler.step(optimizer)
        scaler.update()
        skipped.append(not all(torch.isfinite(halves[n].grad).all() for n in masters))
        losses.append(loss.item())
        norms.append(0.0 if skipped[-1] else norm)
    result = dict(step_loss=torch.tensor(losses), step_gradient_norm=torch.tensor(norms))
    result |= {"final/" + n: w.detach() for n, w in masters.items()}
    return result, scales, skipped, largest


def run_exact(initial, tokens, targets, skipped, scales):
    p = {n: w.double().clone().requires_grad_() for n, w in initial.items()}
    optimizer = make_optimizer(list(p.values()))
    losses, norms = [], []
    for step in range(STEPS):
        optimizer.zero_grad()
        loss = loss_of(forward(p, tokens[step]), targets[step], "mean")
        loss.backward()
        # The verdict of a step must not hang on a rounding.
        largest = max(w.grad.abs().max().item() for w in p.values()) * scales[step] / 65520
        assert (largest > 1.0) == skipped[step] and not 0.98 < largest < 1.02, (step, largest)
        norms.append(0.0)
        losses.append(loss.item())
        if skipped[step]:
            continue
        norms[-1] = torch.nn.utils.clip_grad_norm_(p.values(), OPTIMIZER["clip_norm"]).item()
        optimizer.step()
    result = dict(step_loss=torch.tensor(losses, dtype=torch.float64),
                  step_gradient_norm=torch.tensor(norms, dtype=torch.float64))
    return result | {"final/" + n: w.detach() for n, w in p.items()}


def main():
    torch.set_num_threads(1)
    initial, tokens, targets = batches()
    rough, scales, skipped, largest = run_fp16(initial, tokens, targets)
    print("scales", scales, "skipped", [int(s) for s in skipped], "largest", largest)
    exact = run_exact(initial, tokens, targets, skipped, scales)
    tensors = dict(scales=torch.tensor(scales), skipped=torch.tensor(skipped).int()) | exact

    index, blob = {}, bytearray()
    for name, tensor in tensors.items():
        integer = not tensor.is_floating_point()
        index[name] = dict(shape=list(tensor.shape), dtype="int32" if integer else "fp32",
                           offset=len(blob) // 4)
        if name in rough:
            index[name]["fp16_error"] = relative_error(rough[name], exact[name])
        flat = tensor.reshape(-1).tolist()
        blob += struct.pack(f"<{len(flat)}{'i' if integer else 'f'}", *flat)
    folder = pathlib.Path(__file__).parent
    document = dict(scaler=SCALER, torch=torch.__version__, tensors=index)
    (folder / "gpt2_fp16.json").write_text(json.dumps(document, indent=1) + "\n")
    (folder / "gpt2_fp16.bin").write_bytes(blob)
    for name, entry in index.items():
        print(name, entry.get("fp16_error"))


if __name__ == "__main__":
    main()
