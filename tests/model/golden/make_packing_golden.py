#!/usr/bin/env python3
"""Writes packed/<name>.json and .bin: what transformers computes of several documents in one sequence, with the
models of families/ and of adapters/gpt2_base: position_ids that begin anew with each document, and a mask that is
causal within documents (and within the model's window, which a mask of one's own replaces).

Run by hand, with transformers 5: python3 make_packing_golden.py
Computed in float64 from the weights as stored. The format is that of gpt2.json; of the names there:
  tokens, targets, starts  (B, T) int32; targets are the next tokens of the document, -1 for its last; starts: where
                           the document of each place begins
  logits                   (B, T, V)
  gradient/<name>          of the mean loss, by transformers' names
"""

import pathlib

import torch
import transformers

from golden_file import write_golden

HERE = pathlib.Path(__file__).parent
FOLDERS = {"llama": "families/llama", "mistral": "families/mistral", "qwen2_window": "families/qwen2_window",
           "qwen3": "families/qwen3", "gpt2": "adapters/gpt2_base", "gemma2": "families/gemma2",
           "gemma3": "families/gemma3"}
DOCUMENTS = [[7, 1, 9, 5, 2], [3, 15, 6], [24]]


def main():
    (HERE / "packed").mkdir(exist_ok=True)
    for seed, (name, folder) in enumerate(FOLDERS.items()):
        model = transformers.AutoModelForCausalLM.from_pretrained(
            HERE / folder, dtype=torch.float32, attn_implementation="eager").double().eval()
        torch.manual_seed(seed)
        length = sum(DOCUMENTS[0])
        tokens = torch.randint(model.config.vocab_size, (len(DOCUMENTS), length))
        starts = torch.tensor([sum(([sum(row[:i])] * n for i, n in enumerate(row)), []) for row in DOCUMENTS])
        places = torch.arange(length)
        is_last = torch.cat([starts[:, 1:] != starts[:, :-1], torch.ones(len(DOCUMENTS), 1, dtype=torch.bool)], dim=1)
        targets = torch.where(is_last, -1, tokens.roll(-1, 1))
        seen = (places[None, :, None] >= places[None, None, :]) & (starts[:, :, None] == starts[:, None, :])
        masks = {"full_attention": seen}
        window = getattr(model.config, "sliding_window", None)
        if window:
            masks["sliding_attention"] = seen & (places[None, :, None] - places[None, None, :] < window)
        masks = {k: torch.zeros(m.shape, dtype=torch.float64).masked_fill(~m, torch.finfo(torch.float64).min)[:, None] for k, m in masks.items()}
        kinds = getattr(model.config, "layer_types", None)
        mask = masks["sliding_attention"] if window and not kinds else masks["full_attention"]
        if kinds and len(set(kinds)) > 1:
            mask = masks
        elif kinds:
            mask = masks[kinds[0]]
        logits = model(tokens, attention_mask=mask, position_ids=places - starts).logits
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=-1)
        loss.backward()
        tensors = dict(tokens=tokens, targets=targets, starts=starts, logits=logits.detach(), loss=loss.detach()[None])
        tensors |= {"gradient/" + n: w.grad for n, w in model.named_parameters()}
        write_golden(HERE / "packed" / name, tensors, transformers=transformers.__version__)
        print(name, loss.item())


if __name__ == "__main__":
    main()
