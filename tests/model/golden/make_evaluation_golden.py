#!/usr/bin/env python3
"""Writes evaluation.json beside this file: what transformers says of a small GPT-2 on held-out tokens.

Run by hand, with any recent PyTorch and transformers: python3 make_evaluation_golden.py
The model is that of make_gpt2_golden.py, with its initial parameters, read from gpt2.bin. Nothing is
dropped. Everything is computed in float64. evaluation.json has:
  batches     each with tokens and targets (B, T), a target of -100 does not count; counted, how many
              do; loss, the sum of theirs; and correct, how many are the argmax of their logits
  tokens      of all batches
  loss        the mean over all tokens, however they are spread over batches
  perplexity  exp(loss)
  fp32_error  how far transformers' own float32 is from loss, as a part of it
"""

import json
import math
import pathlib
import struct

import torch
import torch.nn.functional as F
import transformers

FOLDER = pathlib.Path(__file__).parent
IGNORED = -100
BATCH, LENGTH = 3, 32
IGNORED_PART = [0.0, 0.1, 0.9, 1.0, 0.4]  # of each batch's targets


def parameters():
    index = json.loads((FOLDER / "gpt2.json").read_text())
    blob = (FOLDER / "gpt2.bin").read_bytes()
    result = {}
    for name, entry in index["tensors"].items():
        if name.startswith("initial/"):
            numel = math.prod(entry["shape"])
            values = struct.unpack_from(f"<{numel}f", blob, 4 * entry["offset"])
            result[name.removeprefix("initial/")] = torch.tensor(values).reshape(entry["shape"])
    return index["config"], result


def make_model(config, weights):
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config(
        vocab_size=config["vocab_size"], n_positions=config["context_length"], n_embd=config["width"],
        n_layer=config["layers"], n_head=config["heads"], bos_token_id=0, eos_token_id=0))
    # transformers keeps a linear layer's weight as (inputs, outputs).
    linear = (".c_attn.weight", ".c_proj.weight", ".c_fc.weight")
    state = {"transformer." + n: w.T if n.endswith(linear) else w for n, w in weights.items()}
    missing, unexpected = model.load_state_dict(state, strict=False)
    assert missing == ["lm_head.weight"] and not unexpected, (missing, unexpected)  # tied to wte
    return model.eval()


@torch.no_grad()
def evaluate(model, batches):
    """The sum of the losses of each batch, and how many targets are the argmax of their logits."""
    sums, correct = [], []
    for tokens, targets in batches:
        logits = model(tokens).logits
        sums.append(F.cross_entropy(logits.reshape(-1, logits.shape[-1]), targets.reshape(-1),
                                    ignore_index=IGNORED, reduction="sum").item())
        correct.append((logits.argmax(-1) == targets).sum().item())  # IGNORED is no index
    return sums, correct


def main():
    torch.set_num_threads(1)
    config, weights = parameters()
    generator = torch.Generator().manual_seed(2)
    batches = []
    for part in IGNORED_PART:
        # A text is its own target, one token later.
        text = torch.randint(config["vocab_size"], (BATCH, LENGTH + 1), generator=generator)
        targets = text[:, 1:].clone()
        targets[torch.rand(targets.shape, generator=generator) < part] = IGNORED
        batches.append((text[:, :-1], targets))

    model = make_model(config, weights)
    rough, _ = evaluate(model, batches)
    exact, correct = evaluate(model.double(), batches)
    counts = [(targets != IGNORED).sum().item() for _, targets in batches]
    loss = sum(exact) / sum(counts)
    document = dict(
        config=config, torch=torch.__version__, transformers=transformers.__version__,
        tokens=sum(counts), loss=loss, perplexity=math.exp(loss),
        fp32_error=abs(sum(rough) / sum(counts) - loss) / loss,
        batches=[dict(tokens=t.tolist(), targets=y.tolist(), counted=n, loss=s, correct=c)
                 for (t, y), n, s, c in zip(batches, counts, exact, correct)])
    text = json.dumps(document).replace("[[", "\n[[").replace("], [", "],\n[")
    (FOLDER / "evaluation.json").write_text(text + "\n")
    print({k: v for k, v in document.items() if k != "batches"}, counts, exact)


if __name__ == "__main__":
    main()
