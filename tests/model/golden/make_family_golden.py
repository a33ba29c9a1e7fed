#!/usr/bin/env python3
"""Writes families/<name>/, small random models of each family as transformers writes them, and beside each
<name>.json and <name>.bin: what transformers computes with it.

Run by hand, with transformers 5: python3 make_family_golden.py [NAME...]
With names only these are written; without any the folder is made anew.
Everything is computed in float64 from the weights as stored and stored in float32; the same computation in float32
gives "fp32_error" of each tensor (largest difference over largest magnitude), and in bfloat16 the "bf16_error" of the
logits and of the worst gradient: how far a correct implementation may be. The format is that of gpt2.json, and of
the names there:
  tokens, targets      (steps, B, T) int32, a batch for each step; targets are the next tokens, -1 for the last
  logits               (B, T, V) of the first batch
  gradient/<name>      of the first batch's mean loss, by transformers' names
  step_loss, step_gradient_norm  (steps), with AdamW on the same weights; norms before clipping
"""

import pathlib
import shutil
import sys

import torch
import transformers

from golden_file import relative_error, write_golden

HERE = pathlib.Path(__file__).parent / "families"
BATCH, LENGTH, STEPS = 3, 24, 20
OPTIMIZER = dict(learning_rate=1e-3, beta1=0.9, beta2=0.95, epsilon=1e-8, weight_decay=0.1, clip_norm=1.0)
SIZES = dict(vocab_size=37, max_position_embeddings=32, hidden_size=16, intermediate_size=24, num_hidden_layers=2,
             num_attention_heads=4, num_key_value_heads=2, bos_token_id=None, eos_token_id=None, pad_token_id=None)
LONG = [1.0, 1.5]
CASES = {
    "llama": ("Llama", dict(rms_norm_eps=1e-5)),
    "llama3": ("Llama", dict(rms_norm_eps=1e-5, head_dim=8, tie_word_embeddings=True, rope_parameters=dict(
        rope_type="llama3", rope_theta=500.0, factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
        original_max_position_embeddings=16))),
    "mistral": ("Mistral", dict(sliding_window=7)),
    "qwen2": ("Qwen2", dict(tie_word_embeddings=True)),
    "qwen2_window": ("Qwen2", dict(use_sliding_window=True, sliding_window=5, max_window_layers=1)),
    "qwen3": ("Qwen3", dict(head_dim=8)),
    "phi3": ("Phi3", dict(num_attention_heads=2, num_key_value_heads=1, rope_parameters=dict(
        rope_type="default", rope_theta=100.0, partial_rotary_factor=0.75), sliding_window=9)),
    "phi3_longrope": ("Phi3", dict(original_max_position_embeddings=16, rope_parameters=dict(
        rope_type="longrope", rope_theta=100.0, partial_rotary_factor=1.0, short_factor=LONG,
        long_factor=[2.0, 3.0]))),
    # Soft caps that bend what they cap, and a width whose root is no number of bfloat16.
    "gemma2": ("Gemma2", dict(hidden_size=20, head_dim=8, query_pre_attn_scalar=6, sliding_window=7,
                              attn_logit_softcapping=2.0, final_logit_softcapping=3.0)),
    "gemma3": ("Gemma3", dict(hidden_size=20, head_dim=8, query_pre_attn_scalar=6, sliding_window=7,
                              num_hidden_layers=3, layer_types=["sliding_attention"] * 2 + ["full_attention"],
                              rope_parameters=dict(
                                  full_attention=dict(rope_type="linear", rope_theta=500.0, factor=8.0),
                                  sliding_attention=dict(rope_type="default", rope_theta=100.0)))),
    "llama_yarn": ("Llama", dict(rms_norm_eps=1e-5, head_dim=8, rope_parameters=dict(
        rope_type="yarn", rope_theta=500.0, factor=4.0, beta_fast=4.0, original_max_position_embeddings=16))),
    # Sequences are longer than what the model was trained with.
    "qwen2_dynamic": ("Qwen2", dict(max_position_embeddings=16, rope_parameters=dict(
        rope_type="dynamic", rope_theta=500.0, factor=3.0))),
}
TEXT_CONFIGS = {"Gemma3": "Gemma3TextConfig"}


def make_model(family, more, seed):
    """Larger than a real initialisation, so that every path carries weight."""
    torch.manual_seed(seed)
    config = getattr(transformers, TEXT_CONFIGS.get(family, family + "Config"))(**{**SIZES, **more})
    config._attn_implementation = "eager"
    model = getattr(transformers, family + "ForCausalLM")(config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            normal = torch.randn(parameter.shape)
            # Gemma's norms have weights that are differences from 1.
            one = 0 if family.startswith("Gemma") else 1
            parameter.copy_(one + 0.1 * normal if "norm" in name else 0.2 * normal)
    return model.eval()


def loss_of(model, tokens, targets):
    logits = model(tokens).logits
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten().long(), ignore_index=-1)
    return logits, loss


def run(folder, tokens, targets, dtype):
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32,
                                                              attn_implementation="eager").to(dtype).eval()
    named = dict(model.named_parameters())
    groups = [dict(params=[w for w in named.values() if w.dim() >= 2], weight_decay=OPTIMIZER["weight_decay"]),
              dict(params=[w for w in named.values() if w.dim() < 2], weight_decay=0.0)]
    optimizer = torch.optim.AdamW(groups, lr=OPTIMIZER["learning_rate"], eps=OPTIMIZER["epsilon"],
                                  betas=(OPTIMIZER["beta1"], OPTIMIZER["beta2"]))
    result, losses, norms = {}, [], []
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


def main():
    if len(sys.argv) == 1:
        shutil.rmtree(HERE, ignore_errors=True)
    HERE.mkdir(exist_ok=True)
    for seed, (name, (family, more)) in enumerate(CASES.items()):
        if len(sys.argv) > 1 and name not in sys.argv[1:]:
            continue
        folder = HERE / name
        make_model(family, more, seed).save_pretrained(folder)
        (folder / "generation_config.json").unlink(missing_ok=True)
        torch.manual_seed(100 + seed)
        tokens = torch.randint(SIZES["vocab_size"], (STEPS, BATCH, LENGTH))
        targets = torch.cat([tokens[:, :, 1:], torch.full((STEPS, BATCH, 1), -1)], dim=2)
        exact, single = (run(folder, tokens, targets, dtype) for dtype in (torch.float64, torch.float32))
        coarse = run(folder, tokens[:1], targets[:1], torch.bfloat16)
        bf16_error = dict(
            logits=relative_error(coarse["logits"], exact["logits"]),
            gradients=max(relative_error(coarse[k], exact[k]) for k in exact if k.startswith("gradient/")))
        index = write_golden(HERE / name, dict(tokens=tokens, targets=targets, **exact), single,
                             transformers=transformers.__version__, optimizer=OPTIMIZER, bf16_error=bf16_error)
        print(name, {k: f"{v['fp32_error']:.1e}" for k, v in index.items() if k in ("logits", "step_loss")})


if __name__ == "__main__":
    main()
