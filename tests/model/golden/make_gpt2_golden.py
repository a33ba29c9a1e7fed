#!/usr/bin/env python3
"""Writes gpt2.json and gpt2.bin beside this file: what PyTorch says a small GPT-2 computes.

Run by hand, with any recent PyTorch: python3 make_gpt2_golden.py
Everything is computed in float64 and stored in float32; the same computation in float32 gives the
"fp32_error" of each tensor in the index (largest difference over largest magnitude), which tells how
far apart two correct float32 implementations may lie.

gpt2.bin is little-endian; gpt2.json has for each tensor its shape, dtype and offset in elements of
4 bytes:
  tokens, targets      (steps, B, T) int32, a batch for each step; a target of -1 does not count
  initial/<parameter>  before the first step
  logits               (B, T, V) of the first batch
  losses               (B * T) of the first batch, 0 where the target does not count
  gradient/<parameter> of the first batch's mean loss, not clipped
  step_loss            (steps) mean loss of each step's batch before its update
  step_gradient_norm   (steps) before clipping
  final/<parameter>    after all steps
"""

import json
import math
import pathlib
import struct

import torch
import torch.nn.functional as F

from golden_file import relative_error

CONFIG = dict(vocab_size=65, context_length=40, layers=2, heads=4, width=48)
BATCH, LENGTH, STEPS = 3, 32, 20
OPTIMIZER = dict(learning_rate=1e-3, beta1=0.9, beta2=0.95, epsilon=1e-8, weight_decay=0.1,
                 clip_norm=1.0)


def initial_parameters(generator):
    """Larger than a real initialisation, so that every path carries weight."""
    v, t, c = CONFIG["vocab_size"], CONFIG["context_length"], CONFIG["width"]
    shapes = {"wte.weight": (v, c), "wpe.weight": (t, c)}
    for i in range(CONFIG["layers"]):
        h = f"h.{i}."
        shapes |= {
            h + "ln_1.weight": (c,), h + "ln_1.bias": (c,),
            h + "attn.c_attn.weight": (3 * c, c), h + "attn.c_attn.bias": (3 * c,),
            h + "attn.c_proj.weight": (c, c), h + "attn.c_proj.bias": (c,),
            h + "ln_2.weight": (c,), h + "ln_2.bias": (c,),
            h + "mlp.c_fc.weight": (4 * c, c), h + "mlp.c_fc.bias": (4 * c,),
            h + "mlp.c_proj.weight": (c, 4 * c), h + "mlp.c_proj.bias": (c,),
        }
    shapes |= {"ln_f.weight": (c,), "ln_f.bias": (c,)}
    parameters = {}
    for name, shape in shapes.items():
        normal = torch.randn(shape, generator=generator)
        if ".ln_" in "." + name and name.endswith("weight"):
            parameters[name] = 1 + 0.1 * normal
        else:
            parameters[name] = (0.1 if len(shape) == 2 else 0.02) * normal
    return parameters


def forward(p, tokens):
    """(B, T) -> logits (B, T, V)."""
    b, t = tokens.shape
    c, heads = CONFIG["width"], CONFIG["heads"]

    def norm(x, name):
        return F.layer_norm(x, (c,), p[name + ".weight"], p[name + ".bias"], eps=1e-5)

    def linear(x, name):
        return F.linear(x, p[name + ".weight"], p[name + ".bias"])

    x = p["wte.weight"][tokens] + p["wpe.weight"][:t]
    causal = torch.ones(t, t, dtype=torch.bool).tril()
    for i in range(CONFIG["layers"]):
        h = f"h.{i}."
        q, k, v = linear(norm(x, h + "ln_1"), h + "attn.c_attn").split(c, dim=2)
        q, k, v = (z.view(b, t, heads, c // heads).transpose(1, 2) for z in (q, k, v))
        scores = (q @ k.transpose(2, 3)) / math.sqrt(c // heads)
        weights = scores.masked_fill(~causal, float("-inf")).softmax(dim=3)
        x = x + linear((weights @ v).transpose(1, 2).reshape(b, t, c), h + "attn.c_proj")
        hidden = F.gelu(linear(norm(x, h + "ln_2"), h + "mlp.c_fc"), approximate="tanh")
        x = x + linear(hidden, h + "mlp.c_proj")
    return norm(x, "ln_f") @ p["wte.weight"].T


def loss_of(logits, targets, reduction):
    return F.cross_entropy(logits.reshape(-1, logits.shape[-1]), targets.reshape(-1),
                           ignore_index=-1, reduction=reduction)


def run(initial, tokens, targets, dtype):
    """Everything that is stored, computed in `dtype`."""
    p = {n: w.to(dtype).clone().requires_grad_() for n, w in initial.items()}
    groups = [
        dict(params=[w for w in p.values() if w.dim() >= 2],
             weight_decay=OPTIMIZER["weight_decay"]),
        dict(params=[w for w in p.values() if w.dim() < 2], weight_decay=0.0),
    ]
    optimizer = torch.optim.AdamW(groups, lr=OPTIMIZER["learning_rate"], eps=OPTIMIZER["epsilon"],
                                  betas=(OPTIMIZER["beta1"], OPTIMIZER["beta2"]))
    result, losses, norms = {}, [], []
    for step in range(STEPS):
        logits = forward(p, tokens[step])
        loss = loss_of(logits, targets[step], "mean")
        optimizer.zero_grad()
        loss.backward()
        if step == 0:
            result["logits"] = logits.detach()
            result["losses"] = loss_of(logits, targets[0], "none").detach()
            result |= {"gradient/" + n: w.grad.clone() for n, w in p.items()}
        losses.append(loss.item())
        norms.append(torch.nn.utils.clip_grad_norm_(p.values(), OPTIMIZER["clip_norm"]).item())
        optimizer.step()
    result["step_loss"] = torch.tensor(losses, dtype=torch.float64)
    result["step_gradient_norm"] = torch.tensor(norms, dtype=torch.float64)
    return result | {"final/" + n: w.detach() for n, w in p.items()}


def main():
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(1)
    initial = initial_parameters(generator)
    shape = (STEPS, BATCH, LENGTH)
    tokens = torch.randint(CONFIG["vocab_size"], shape, generator=generator)
    # Mostly predictable from the token before, so that 20 steps show in the loss.
    targets = (tokens * 7 + 3) % CONFIG["vocab_size"]
    targets[torch.rand(shape, generator=generator) < 0.1] = -1

    exact = run(initial, tokens, targets, torch.float64)
    rough = run(initial, tokens, targets, torch.float32)
    tensors = {"tokens": tokens, "targets": targets}
    tensors |= {"initial/" + n: w for n, w in initial.items()} | exact

    index, blob = {}, bytearray()
    for name, tensor in tensors.items():
        integer = not tensor.is_floating_point()
        index[name] = dict(shape=list(tensor.shape), dtype="int32" if integer else "fp32",
                           offset=len(blob) // 4)
        if name in rough:
            index[name]["fp32_error"] = relative_error(rough[name], exact[name])
        flat = tensor.reshape(-1).tolist()
        blob += struct.pack(f"<{len(flat)}{'i' if integer else 'f'}", *flat)
    folder = pathlib.Path(__file__).parent
    document = dict(config=CONFIG, optimizer=OPTIMIZER, torch=torch.__version__, tensors=index)
    (folder / "gpt2.json").write_text(json.dumps(document, indent=1) + "\n")
    (folder / "gpt2.bin").write_bytes(blob)

    print("losses", exact["step_loss"].tolist())
    print("gradient norms", exact["step_gradient_norm"].tolist())
    for name, entry in sorted(index.items(), key=lambda item: -item[1].get("fp32_error", 0))[:12]:
        print(f"{entry.get('fp32_error', 0):.2e}  {name}")


if __name__ == "__main__":
    main()
