#!/usr/bin/env python3
"""Writes adapters/<name>/, LoRA and IA3 adapters of small random models as PEFT writes them, and beside each
<name>.json and <name>.bin: what PEFT computes with it. Their base models are families/<base> (make_family_golden.py)
and, of GPT-2, adapters/gpt2_base.

Run by hand, with transformers 5 and peft: python3 make_adapter_golden.py [NAME...]; without names all anew.
The format is that of families/<name>.json, with one more tensor: base_logits, of the model without adapters. Gradients
are those of the tensors of adapter_model.safetensors, by their names there. The folders <name>_new are the same
adapters as PEFT begins with them.
"""

import json
import pathlib
import shutil
import sys

import peft
import torch
import transformers

from golden_file import relative_error, write_golden
from make_family_golden import BATCH, HERE as FAMILIES, LENGTH, OPTIMIZER, SIZES, STEPS, loss_of

LORA, IA3 = peft.LoraConfig, peft.IA3Config
HERE = pathlib.Path(__file__).parent / "adapters"
CASES = {
    "llama": ("llama", LORA, dict(r=4, lora_alpha=8, target_modules=["q_proj", "v_proj"])),
    "qwen2": ("qwen2", LORA, dict(r=3, lora_alpha=6, use_rslora=True, target_modules="all-linear",
                                  rank_pattern={r"layers\.1\.mlp\.up_proj": 5}, alpha_pattern={"o_proj": 2.5},
                                  exclude_modules=["k_proj"])),
    "mistral": ("mistral", LORA, dict(r=2, lora_alpha=3, target_modules=r".*\.1\.(self_attn|mlp)\.(o|gate)_proj",
                                      modules_to_save=["lm_head", "input_layernorm"])),
    "phi3": ("phi3", LORA, dict(r=4, lora_alpha=4, target_modules=["qkv_proj", "down_proj"],
                                layers_to_transform=[1])),
    "gpt2": ("gpt2", LORA, dict(r=4, lora_alpha=16, target_modules=["c_attn", "mlp.c_proj"],
                                modules_to_save=["ln_f"])),
    "llama_ia3": ("llama", IA3, dict()),
    "gpt2_ia3": ("gpt2", IA3, dict(modules_to_save=["ln_f"])),
    "qwen2_ia3": ("qwen2", IA3, dict(target_modules="all-linear", feedforward_modules=r".*\.(down|o)_proj",
                                     exclude_modules=["k_proj"])),
    "phi3_ia3": ("phi3", IA3, dict(target_modules=["qkv_proj", "o_proj", "gate_up_proj", "down_proj"],
                                   feedforward_modules=["gate_up_proj"], modules_to_save=["lm_head"])),
    "gemma2": ("gemma2", LORA, dict(r=3, lora_alpha=6, target_modules="all-linear",
                                    modules_to_save=["post_feedforward_layernorm"])),
    "gemma3_ia3": ("gemma3", IA3, dict()),
    "llama_dora": ("llama", LORA, dict(r=4, lora_alpha=8, use_dora=True,
                                       target_modules=["q_proj", "v_proj", "o_proj", "down_proj"])),
    "gpt2_dora": ("gpt2", LORA, dict(r=3, lora_alpha=6, use_dora=True, use_rslora=True,
                                     target_modules=["c_attn", "mlp.c_proj"], modules_to_save=["ln_f"])),
    "qwen2_dora": ("qwen2", LORA, dict(r=4, lora_alpha=4, use_dora=True, target_modules="all-linear",
                                       exclude_modules=["k_proj"])),
    "llama_pissa": ("llama", LORA, dict(r=4, lora_alpha=8, init_lora_weights="pissa",
                                        target_modules=["q_proj", "v_proj", "o_proj", "down_proj"])),
    "gpt2_pissa": ("gpt2", LORA, dict(r=5, lora_alpha=3, init_lora_weights="pissa", use_dora=True,
                                      target_modules=["c_attn", "mlp.c_fc"])),
    "llama_embedding": ("llama", LORA, dict(r=4, lora_alpha=6, target_modules=["embed_tokens", "q_proj", "lm_head"])),
    "gpt2_embedding": ("gpt2", LORA, dict(r=3, lora_alpha=6, target_modules=["wte", "lm_head", "c_attn"])),
    "gemma2_embedding": ("gemma2", LORA, dict(r=3, lora_alpha=6, use_rslora=True, target_modules=["embed_tokens"])),
}


def make_gpt2(folder):
    torch.manual_seed(50)
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config(
        vocab_size=SIZES["vocab_size"], n_positions=32, n_embd=16, n_layer=2, n_head=4, bos_token_id=None,
        eos_token_id=None, pad_token_id=None, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            normal = torch.randn(parameter.shape)
            parameter.copy_(1 + 0.1 * normal if "ln" in name and "weight" in name else 0.2 * normal)
    model.save_pretrained(folder)
    (folder / "generation_config.json").unlink(missing_ok=True)


def base_model(folder, dtype):
    return transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32,
                                                             attn_implementation="eager").to(dtype).eval()


def exact_svd(matrix, svd=torch.linalg.svd, **more):
    """PEFT decomposes in float32, whose errors come to 4e-5 in gradients of PiSSA."""
    return [part.to(matrix.dtype) for part in svd(matrix.double(), **more)]


def stored_name(name):
    name = name.replace("lora_magnitude_vector.default.weight", "lora_magnitude_vector")
    return name.replace(".modules_to_save.default", "").replace(".default", "")


def run(base, adapter, tokens, targets, dtype):
    model = base_model(base, torch.float32)
    result = {"base_logits": base_model(base, dtype)(tokens[0]).logits.detach()}
    model = peft.PeftModel.from_pretrained(model, adapter, is_trainable=True).to(dtype).eval()
    named = {stored_name(name): w for name, w in model.named_parameters() if w.requires_grad}
    decayed = {name for name, w in named.items() if w.dim() >= 2 and not name.endswith(".ia3_l")}  # which begin as 1
    groups = [dict(params=[w for name, w in named.items() if name in decayed], weight_decay=OPTIMIZER["weight_decay"]),
              dict(params=[w for name, w in named.items() if name not in decayed], weight_decay=0.0)]
    optimizer = torch.optim.AdamW(groups, lr=OPTIMIZER["learning_rate"], eps=OPTIMIZER["epsilon"],
                                  betas=(OPTIMIZER["beta1"], OPTIMIZER["beta2"]))
    losses, norms = [], []
    for step in range(len(tokens)):
        logits, loss = loss_of(model, tokens[step], targets[step])
        optimizer.zero_grad()
        loss.backward()
        if step == 0:
            result["logits"] = logits.detach()
            result |= {"gradient/" + name: w.grad.clone() for name, w in named.items()}
        losses.append(loss.item())
        norms.append(torch.nn.utils.clip_grad_norm_(named.values(), OPTIMIZER["clip_norm"]).item())
        optimizer.step()
    result["step_loss"] = torch.tensor(losses, dtype=torch.float64)
    result["step_gradient_norm"] = torch.tensor(norms, dtype=torch.float64)
    return result


def save(model, folder):
    model.save_pretrained(folder)
    (folder / "README.md").unlink()
    path = folder / "adapter_config.json"
    config = json.loads(path.read_text())
    config["base_model_name_or_path"] = None  # a path of this machine
    path.write_text(json.dumps(config, indent=2, sort_keys=True))


def main():
    torch.linalg.svd = exact_svd
    names = sys.argv[1:]
    if not names:
        shutil.rmtree(HERE, ignore_errors=True)
        HERE.mkdir()
        make_gpt2(HERE / "gpt2_base")
    for seed, (name, (base, kind, more)) in enumerate(CASES.items()):
        if names and name not in names:
            continue
        base = HERE / "gpt2_base" if base == "gpt2" else FAMILIES / base
        torch.manual_seed(200 + seed)
        config = kind(task_type="CAUSAL_LM", **more)
        save(peft.get_peft_model(base_model(base, torch.float32), config), HERE / (name + "_new"))
        model = peft.get_peft_model(base_model(base, torch.float32), config)
        with torch.no_grad():
            for w in model.parameters():
                if w.requires_grad:
                    w.add_(0.2 * torch.randn(w.shape))
        save(model, HERE / name)
        tokens = torch.randint(SIZES["vocab_size"], (STEPS, BATCH, LENGTH))
        targets = torch.cat([tokens[:, :, 1:], torch.full((STEPS, BATCH, 1), -1)], dim=2)
        exact, single = (run(base, HERE / name, tokens, targets, dtype) for dtype in (torch.float64, torch.float32))
        coarse = run(base, HERE / name, tokens[:1], targets[:1], torch.bfloat16)
        bf16_error = dict(
            logits=relative_error(coarse["logits"], exact["logits"]),
            gradients=max(relative_error(coarse[k], exact[k]) for k in exact if k.startswith("gradient/")))
        index = write_golden(HERE / name, dict(tokens=tokens, targets=targets, **exact), single, peft=peft.__version__,
                             transformers=transformers.__version__, optimizer=OPTIMIZER, bf16_error=bf16_error)
        print(name, {k: f"{v['fp32_error']:.1e}" for k, v in index.items() if k in ("logits", "step_loss")})


if __name__ == "__main__":
    main()
