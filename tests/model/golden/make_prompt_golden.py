#!/usr/bin/env python3
"""Writes prompts/<name>/, tuned prompts (peft_type PROMPT_TUNING, P_TUNING and PREFIX_TUNING) of small random models as PEFT writes
them, and beside each <name>.json and <name>.bin: what PEFT computes with it. The base models are those of
make_adapter_golden.py.

Run by hand, with transformers 5 and peft: python3 make_prompt_golden.py [NAME...]; without names all anew.
The format is that of adapters/<name>.json. Logits are those of the tokens, without those of the prompt. PEFT's files
lack the encoders of P_TUNING and PREFIX_TUNING, so their goldens have its parameters: parameter/<name>.
"""

import pathlib
import shutil
import sys

import peft
import safetensors
import torch
import transformers

import make_adapter_golden as adapters
from golden_file import write_golden
from make_family_golden import BATCH, HERE as FAMILIES, OPTIMIZER, SIZES, STEPS

HERE = pathlib.Path(__file__).parent / "prompts"
LENGTH = 20
PROMPT, ENCODER, PREFIX = peft.PromptTuningConfig, peft.PromptEncoderConfig, peft.PrefixTuningConfig
RANDOM = dict(prompt_tuning_init="RANDOM")
CASES = {
    "llama": ("llama", PROMPT, dict(num_virtual_tokens=5, **RANDOM)),
    "mistral": ("mistral", PROMPT, dict(num_virtual_tokens=9, **RANDOM)),
    "gpt2": ("gpt2", PROMPT, dict(num_virtual_tokens=3, **RANDOM)),
    "llama_encoder": ("llama", ENCODER, dict(num_virtual_tokens=5, encoder_hidden_size=11)),
    "gpt2_encoder": ("gpt2", ENCODER, dict(num_virtual_tokens=3)),
    "llama_prefix": ("llama", PREFIX, dict(num_virtual_tokens=5)),
    "mistral_prefix": ("mistral", PREFIX, dict(num_virtual_tokens=9)),
    "qwen3_prefix": ("qwen3", PREFIX, dict(num_virtual_tokens=4)),
    "gpt2_prefix": ("gpt2", PREFIX, dict(num_virtual_tokens=3)),
    "llama_projection": ("llama", PREFIX, dict(num_virtual_tokens=5, prefix_projection=True, encoder_hidden_size=11)),
    "gpt2_projection": ("gpt2", PREFIX, dict(num_virtual_tokens=3, prefix_projection=True)),
}


def loss_of(model, tokens, targets):
    logits = model(input_ids=tokens).logits[:, -tokens.shape[1]:]
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten().long(), ignore_index=-1)
    return logits, loss


def loader(encoder):
    """PEFT loads prompts for inference alone. `encoder`: the values of all that is trained."""
    def from_pretrained(model, adapter, is_trainable):
        config = peft.PeftConfig.from_pretrained(adapter)
        config.inference_mode = not is_trainable
        wrapped = peft.get_peft_model(model, config)
        wrapped.prompt_encoder["default"].load_state_dict(encoder)
        return wrapped
    return from_pretrained


def main():
    adapters.loss_of = loss_of
    names = sys.argv[1:]
    if not names:
        shutil.rmtree(HERE, ignore_errors=True)
        HERE.mkdir()
    for seed, (name, (base, kind, more)) in enumerate(CASES.items()):
        if names and name not in names:
            continue
        base = adapters.HERE / "gpt2_base" if base == "gpt2" else FAMILIES / base
        torch.manual_seed(300 + seed)
        config = kind(task_type="CAUSAL_LM", **more)
        model = peft.get_peft_model(adapters.base_model(base, torch.float32), config)
        adapters.save(model, HERE / name)
        encoder = {key: value.clone() for key, value in model.prompt_encoder["default"].state_dict().items()}
        peft.PeftModel.from_pretrained = loader(encoder)
        tokens = torch.randint(SIZES["vocab_size"], (STEPS, BATCH, LENGTH))
        targets = torch.cat([tokens[:, :, 1:], torch.full((STEPS, BATCH, 1), -1)], dim=2)
        exact = adapters.run(base, HERE / name, tokens, targets, torch.float64)
        if kind is PROMPT or (kind is PREFIX and not config.prefix_projection):
            exact = {k.replace("prompt_encoder.embedding.weight", "prompt_embeddings"): v for k, v in exact.items()}
        else:
            exact |= {"parameter/prompt_encoder." + key: value for key, value in encoder.items()}
        index = write_golden(HERE / name, dict(tokens=tokens, targets=targets, **exact),
                             peft=peft.__version__, transformers=transformers.__version__,
                             optimizer=OPTIMIZER)
        print(name, list(index))


if __name__ == "__main__":
    main()
