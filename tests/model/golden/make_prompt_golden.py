#!/usr/bin/env python3
"""Writes prompts/<name>/, tuned prompts (peft_type PROMPT_TUNING) of small random models as PEFT writes them, and beside
each <name>.json and <name>.bin: what PEFT computes with it. The base models are those of make_adapter_golden.py.

Run by hand, with transformers 5 and peft: python3 make_prompt_golden.py
The format is that of adapters/<name>.json. Logits are those of the tokens, without those of the prompt.
"""

import pathlib
import shutil

import peft
import safetensors
import torch
import transformers

import make_adapter_golden as adapters
from golden_file import write_golden
from make_family_golden import BATCH, HERE as FAMILIES, OPTIMIZER, SIZES, STEPS

HERE = pathlib.Path(__file__).parent / "prompts"
LENGTH = 20
CASES = {"llama": 5, "mistral": 9, "gpt2": 3}


def loss_of(model, tokens, targets):
    logits = model(input_ids=tokens).logits[:, -tokens.shape[1]:]
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten().long(), ignore_index=-1)
    return logits, loss


def from_pretrained(model, adapter, is_trainable):
    """PEFT loads prompts for inference alone."""
    config = peft.PromptTuningConfig.from_pretrained(adapter)
    config.inference_mode = not is_trainable
    wrapped = peft.get_peft_model(model, config)
    with safetensors.safe_open(adapter / "adapter_model.safetensors", "pt") as file:
        wrapped.prompt_encoder["default"].embedding.weight.data.copy_(file.get_tensor("prompt_embeddings"))
    return wrapped


def main():
    adapters.loss_of = loss_of
    peft.PeftModel.from_pretrained = from_pretrained
    shutil.rmtree(HERE, ignore_errors=True)
    HERE.mkdir()
    for seed, (name, count) in enumerate(CASES.items()):
        base = adapters.HERE / "gpt2_base" if name == "gpt2" else FAMILIES / name
        torch.manual_seed(300 + seed)
        config = peft.PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=count, prompt_tuning_init="RANDOM")
        adapters.save(peft.get_peft_model(adapters.base_model(base, torch.float32), config), HERE / name)
        tokens = torch.randint(SIZES["vocab_size"], (STEPS, BATCH, LENGTH))
        targets = torch.cat([tokens[:, :, 1:], torch.full((STEPS, BATCH, 1), -1)], dim=2)
        exact = adapters.run(base, HERE / name, tokens, targets, torch.float64)
        exact = {k.replace("prompt_encoder.embedding.weight", "prompt_embeddings"): v for k, v in exact.items()}
        index = write_golden(HERE / name, dict(tokens=tokens, targets=targets, **exact),
                             peft=peft.__version__, transformers=transformers.__version__,
                             optimizer=OPTIMIZER)
        print(name, list(index))


if __name__ == "__main__":
    main()
