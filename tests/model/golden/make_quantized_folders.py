#!/usr/bin/env python3
"""Writes quantized/<name>/, small random models that bitsandbytes has quantised, as transformers writes them; their
models as they were before, quantized/<base>/; and beside each <name>.json and <name>.bin: what transformers and PEFT
compute with it, with LoRA adapters that are in <name>_adapter/.

Run by hand, with transformers 5, peft and bitsandbytes 0.50: python3 make_quantized_folders.py
`make_quantized_folders.py --check FOLDER NAME` says whether transformers computes the same with a folder that Tessera
has written as with quantized/NAME.

The format is that of adapters/<name>.json, computed in float32. Models in 8 bits are computed with the weights that the
codes stand for: LLM.int8 rounds activations, too. "weights" are FNV-1a hashes of these weights as fp32 bytes, by name,
without the sign of zeros.
"""

import pathlib
import shutil
import sys

import bitsandbytes
import peft
import torch
import transformers
from transformers import BitsAndBytesConfig

from golden_file import write_golden
from make_adapter_golden import save, stored_name
from make_family_golden import BATCH, LENGTH, OPTIMIZER, SIZES, loss_of

HERE = pathlib.Path(__file__).parent / "quantized"
STEPS = 5
BASES = {
    "llama": (transformers.LlamaForCausalLM, transformers.LlamaConfig(
        **{**SIZES, "hidden_size": 32, "intermediate_size": 48})),
    "gpt2": (transformers.GPT2LMHeadModel, transformers.GPT2Config(
        vocab_size=SIZES["vocab_size"], n_positions=32, n_embd=32, n_layer=1, n_head=4, bos_token_id=None,
        eos_token_id=None, pad_token_id=None, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0)),
}
CASES = {
    "llama_nf4": ("llama", dict(load_in_4bit=True, bnb_4bit_quant_type="nf4")),
    "llama_nf4_double": ("llama", dict(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True,
                                       llm_int8_skip_modules=["layers.1.mlp.down_proj", "lm_head"])),
    "gpt2_fp4": ("gpt2", dict(load_in_4bit=True, bnb_4bit_quant_storage="bfloat16")),
    "gpt2_fp4_double": ("gpt2", dict(load_in_4bit=True, bnb_4bit_use_double_quant=True)),
    "llama_int8": ("llama", dict(load_in_8bit=True)),
}


def make_base(name, seed):
    torch.manual_seed(seed)
    model_class, config = BASES[name]
    config._attn_implementation = "eager"
    model = model_class(config)
    with torch.no_grad():
        for key, parameter in model.named_parameters():
            normal = torch.randn(parameter.shape)
            norm = ("norm" in key or "ln_" in key) and "bias" not in key
            parameter.copy_(1 + 0.1 * normal if norm else 0.2 * normal)
    write(model, HERE / name)


def write(model, folder):
    model.save_pretrained(folder)
    (folder / "generation_config.json").unlink(missing_ok=True)


def load(folder, **more):
    return transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager",
                                                             **more).eval()


def weight_of(module):
    if isinstance(module, bitsandbytes.nn.Linear4bit):
        return bitsandbytes.functional.dequantize_4bit(module.weight.data, module.weight.quant_state)
    if isinstance(module, bitsandbytes.nn.Linear8bitLt):
        return bitsandbytes.functional.int8_vectorwise_dequant(module.weight.data, module.weight.SCB)
    return None


def fnv(data):
    value = 0xcbf29ce484222325
    for byte in data:
        value = (value ^ byte) * 0x100000001b3 % 2**64
    return f"{value:016x}"


def to_compute_with(model):
    """In 8 bits, the weights alone."""
    return model.dequantize() if getattr(model, "is_loaded_in_8bit", False) else model


def run(model, tokens, targets):
    named = {stored_name(name): w for name, w in model.named_parameters() if w.requires_grad}
    optimizer = torch.optim.AdamW(named.values(), lr=OPTIMIZER["learning_rate"], eps=OPTIMIZER["epsilon"],
                                  betas=(OPTIMIZER["beta1"], OPTIMIZER["beta2"]),
                                  weight_decay=OPTIMIZER["weight_decay"])
    result, losses, norms = {}, [], []
    for step in range(STEPS):
        logits, loss = loss_of(model, tokens[step], targets[step])
        optimizer.zero_grad()
        loss.backward()
        if step == 0:
            result["logits"] = logits.detach()
            result |= {"gradient/" + name: w.grad.clone() for name, w in named.items()}
        losses.append(loss.item())
        norms.append(torch.nn.utils.clip_grad_norm_(named.values(), OPTIMIZER["clip_norm"]).item())
        optimizer.step()
    return result | dict(step_loss=torch.tensor(losses), step_gradient_norm=torch.tensor(norms))


def make_case(name, base, kind, seed):
    quantized = load(HERE / base, quantization_config=BitsAndBytesConfig(**kind))
    write(quantized, HERE / name)
    quantized = load(HERE / name)
    weights = {key + ".weight": fnv((weight_of(module) + 0.0).contiguous().numpy().tobytes())  # fp4 has a -0
               for key, module in quantized.named_modules() if weight_of(module) is not None}
    torch.manual_seed(seed)
    tokens = torch.randint(SIZES["vocab_size"], (STEPS, BATCH, LENGTH))
    targets = torch.cat([tokens[:, :, 1:], torch.full((STEPS, BATCH, 1), -1)], dim=2)
    tensors = dict(tokens=tokens, targets=targets)
    with torch.no_grad():
        tensors["base_logits"] = to_compute_with(load(HERE / name))(tokens[0]).logits
    config = peft.LoraConfig(task_type="CAUSAL_LM", r=2, lora_alpha=4, target_modules="all-linear")
    model = peft.get_peft_model(to_compute_with(quantized), config)
    with torch.no_grad():
        for w in model.parameters():
            if w.requires_grad:
                w.add_(0.2 * torch.randn(w.shape))
    save(model, HERE / (name + "_adapter"))
    tensors |= run(model, tokens, targets)
    write_golden(HERE / name, tensors, bitsandbytes=bitsandbytes.__version__,
                 transformers=transformers.__version__, optimizer=OPTIMIZER, weights=weights)


def check(folder, name):
    """A folder that Tessera has written, against what bitsandbytes makes of the same model."""
    tokens = torch.randint(SIZES["vocab_size"], (2, LENGTH))
    ours, theirs = load(folder), load(HERE / name)
    with torch.no_grad():
        same = torch.equal(ours(tokens).logits, theirs(tokens).logits)
    ours, theirs = dict(ours.named_modules()), dict(theirs.named_modules())
    kinds = {key: type(module) for key, module in theirs.items()} == {key: type(m) for key, m in ours.items()}
    print(f"{folder}: logits {'are those' if same else 'differ from those'} of {name}, modules "
          f"{'too' if kinds else 'differ'}")
    return 0 if same and kinds else 1


def main():
    torch.set_num_threads(1)
    if sys.argv[1:2] == ["--check"]:
        sys.exit(check(*sys.argv[2:]))
    shutil.rmtree(HERE, ignore_errors=True)
    HERE.mkdir()
    for seed, base in enumerate(BASES):
        make_base(base, 70 + seed)
    for seed, (name, (base, kind)) in enumerate(CASES.items()):
        make_case(name, base, kind, 80 + seed)


if __name__ == "__main__":
    main()
