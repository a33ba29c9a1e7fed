#!/usr/bin/env python3
"""Writes resized.json and resized.bin: what transformers' resize_token_embeddings makes of some folders here, five tokens
more. Names are <folder>/<tensor>, and values are the new rows alone, means of the old ones but for noise whose standard
deviation is 3e-5 of theirs.

Run by hand, with transformers 5: python3 make_resized_golden.py
"""

import pathlib

import torch
import transformers

from golden_file import write_golden

HERE = pathlib.Path(__file__).parent
MORE = 5
FOLDERS = {"families/llama": "AutoModelForCausalLM", "families/qwen3": "AutoModelForCausalLM",
           "encoders/masked": "AutoModelForMaskedLM"}


def main():
    torch.manual_seed(1)
    rows = {}
    for folder, loader in FOLDERS.items():
        model = getattr(transformers, loader).from_pretrained(HERE / folder, dtype=torch.float32)
        tokens = model.config.vocab_size
        model.resize_token_embeddings(tokens + MORE)
        for name, values in model.state_dict().items():
            if values.dim() and values.shape[0] == tokens + MORE:
                rows[f"{folder}/{name}"] = values[tokens:].detach()
        print(folder, model.config.tie_word_embeddings, [name for name in rows if name.startswith(folder)])
    write_golden(HERE / "resized", rows, transformers=transformers.__version__, more=MORE)


if __name__ == "__main__":
    main()
