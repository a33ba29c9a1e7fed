#!/usr/bin/env python3
"""Writes configs.json: small config.json files whose keys are absent, doubled or contradict each other, and what
transformers computes with each of them.

Run by hand, with transformers 5: python3 make_config_golden.py
Each case has "config", and either "refused", the error of transformers, or what its model did with SHORT and LONG tokens:
  frequencies, long_frequencies  of the rotation
  amplitude                      what cosine and sine are multiplied by
  attended                       for each layer to how many positions the last of LONG tokens attends
  window, kv_heads, head_width, epsilon  as the model has them
and of Gemma the scale of attention's scores, both soft caps, and in Gemma 3 the frequencies of layers with a window.
Where transformers 4 differs from 5, 5 counts.
"""

import json
import pathlib
import tempfile

import torch
import transformers

SHORT, LONG = 8, 24
SIZES = dict(vocab_size=37, max_position_embeddings=32, hidden_size=32, intermediate_size=24, num_hidden_layers=3,
             num_attention_heads=4, num_key_value_heads=2, rms_norm_eps=1e-5, bos_token_id=None, eos_token_id=None,
             pad_token_id=None)
GPT2 = dict(vocab_size=37, n_positions=32, n_embd=32, n_layer=3, n_head=4)
LONGROPE = dict(rope_type="longrope", rope_theta=100.0, short_factor=[1.0, 1.1, 1.2, 1.3],
                long_factor=[2.0, 2.5, 3.0, 4.0])
YARN = dict(rope_type="yarn", rope_theta=500.0, factor=4.0)
LLAMA3 = dict(rope_type="llama3", rope_theta=500.0, factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0)
DEFAULT = dict(rope_type="default", rope_theta=300.0)
TRAINED = "original_max_position_embeddings"
WINDOWS = dict(use_sliding_window=True, sliding_window=5)


def mixed_layers(*kinds):
    return [dict(full="full_attention", sliding="sliding_attention")[kind] for kind in kinds]


def cases():
    """Name, model_type, keys; None as a value of `without` removes the key."""
    for family in ("llama", "mistral", "qwen2", "qwen3", "phi3"):
        head = dict(head_dim=8) if family == "qwen3" else {}
        yield f"{family}_plain", family, head
        yield f"{family}_share_outside", family, dict(head, partial_rotary_factor=0.5)
        yield f"{family}_share_inside", family, dict(head, rope_parameters=dict(DEFAULT, partial_rotary_factor=0.5))
        yield f"{family}_share_both", family, dict(head, partial_rotary_factor=0.25, rope_parameters=dict(
            DEFAULT, partial_rotary_factor=0.5))
        yield f"{family}_share_and_longrope", family, dict(head, partial_rotary_factor=0.5, rope_parameters=dict(
            LONGROPE, short_factor=[1.0, 1.5], long_factor=[2.0, 3.0], original_max_position_embeddings=16))
        yield f"{family}_share_and_llama3", family, dict(head, partial_rotary_factor=0.5, rope_parameters=LLAMA3)
        yield f"{family}_base_inside_and_outside", family, dict(head, rope_theta=77.0, rope_parameters=DEFAULT)
        yield f"{family}_base_outside", family, dict(head, rope_theta=77.0, rope_parameters=dict(rope_type="default"))
        yield f"{family}_scaling_over_parameters", family, dict(head, rope_scaling=dict(
            LONGROPE, original_max_position_embeddings=16), rope_parameters=DEFAULT)
        yield f"{family}_default_over_parameters", family, dict(
            head, rope_theta=77.0, rope_scaling=dict(type="default"), rope_parameters=DEFAULT)
        yield f"{family}_empty_scaling", family, dict(head, rope_scaling={}, rope_parameters=DEFAULT)
        yield f"{family}_null_scaling", family, dict(head, rope_scaling=None, rope_parameters=DEFAULT)
        yield f"{family}_null_parameters", family, dict(head, rope_scaling=DEFAULT, rope_parameters=None)
        for name, scaling in (("llama3", LLAMA3), ("longrope", LONGROPE)):
            yield f"{family}_{name}_trained_inside", family, dict(head, rope_parameters=dict(scaling, **{TRAINED: 16}))
            yield f"{family}_{name}_trained_outside", family, dict(head, rope_scaling=scaling, **{TRAINED: 16})
            yield f"{family}_{name}_trained_both", family, dict(head, rope_scaling=dict(scaling, **{TRAINED: 16}), **{
                TRAINED: 20})
            yield f"{family}_{name}_trained_nowhere", family, dict(head, rope_scaling=scaling)
        for key, value in (("factor", 3.0), ("factor", 0.5), ("factor", None), ("attention_factor", 1.7)):
            yield f"{family}_longrope_{key}_{value}", family, dict(head, rope_parameters=dict(
                LONGROPE, **{TRAINED: 16, key: value}))
        yield f"{family}_longrope_both_factors", family, dict(head, rope_parameters=dict(
            LONGROPE, original_max_position_embeddings=16, factor=3.0, attention_factor=1.7))
        for kind in ("su", "yarn"):
            yield f"{family}_{kind}", family, dict(head, rope_scaling=dict(LONGROPE, rope_type=kind, factor=2.0), **{
                TRAINED: 16})
        for name, scaling in (("linear", dict(rope_type="linear", factor=3.0)),
                              ("linear_below_1", dict(rope_type="linear", factor=0.5)),
                              ("dynamic", dict(rope_type="dynamic", rope_theta=500.0, factor=3.0)),
                              ("no_factor", dict(rope_type="linear")),
                              ("proportional", dict(rope_type="proportional", factor=3.0))):
            yield f"{family}_{name}", family, dict(head, max_position_embeddings=16, rope_scaling=scaling)
        if family != "phi3":  # where the name means longrope
            for name, more in (("", {}), ("trained", {TRAINED: 16}), ("factor_null", {TRAINED: 16, "factor": None}),
                               ("turns", {TRAINED: 16, "beta_fast": 4, "beta_slow": 2.0}),
                               ("turns_null", {TRAINED: 16, "beta_fast": None, "beta_slow": 0}),
                               ("parts", {TRAINED: 16, "beta_fast": 4, "truncate": False}),
                               ("attention", {TRAINED: 16, "attention_factor": 1.7}),
                               ("scale", {TRAINED: 16, "mscale": 1.0, "mscale_all_dim": 0.5}),
                               ("one_scale", {TRAINED: 16, "mscale": 0.7}),
                               ("below_1", {TRAINED: 16, "factor": 0.5})):
                yield f"{family}_yarn_{name}", family, dict(head, rope_parameters=dict(YARN, **more))
            yield f"{family}_yarn_outside", family, dict(head, rope_scaling=dict(YARN, **{TRAINED: 16}), **{TRAINED: 20})
            yield f"{family}_yarn_no_factor", family, dict(head, rope_parameters=dict(rope_type="yarn", rope_theta=9.0))
        yield f"{family}_both_types", family, dict(head, rope_scaling=dict(LONGROPE, type="default"), **{TRAINED: 16})
        yield f"{family}_kv_heads_null", family, dict(head, num_key_value_heads=None)
        yield f"{family}_kv_heads_absent", family, dict(head, num_attention_heads=8, num_key_value_heads="absent",
                                                         head_dim=8)
        yield f"{family}_epsilon_absent", family, dict(head, rms_norm_eps="absent")
        yield f"{family}_head_dim_absent", family, {}
        yield f"{family}_window", family, dict(head, sliding_window=5)
        yield f"{family}_window_null", family, dict(head, sliding_window=None)
        yield f"{family}_layer_types", family, dict(head_dim=8, sliding_window=5, layer_types=mixed_layers(
            "full", "full", "sliding"))
        yield f"{family}_layer_types_all", family, dict(head_dim=8, sliding_window=5, layer_types=mixed_layers(
            "sliding", "sliding", "sliding"))
    full = dict(rope_type="linear", rope_theta=500.0, factor=4.0)
    for family in ("gemma2", "gemma3_text"):
        head = dict(head_dim=8)
        yield f"{family}_plain", family, head
        yield f"{family}_no_head", family, {}
        yield f"{family}_scalar", family, dict(head, query_pre_attn_scalar=11)
        yield f"{family}_caps", family, dict(head, attn_logit_softcapping=7.0, final_logit_softcapping=5.0)
        yield f"{family}_no_caps", family, dict(head, attn_logit_softcapping=None, final_logit_softcapping=None)
        yield f"{family}_window", family, dict(head, sliding_window=5)
        yield f"{family}_window_null", family, dict(head, sliding_window=None)
        yield f"{family}_pattern", family, dict(head, sliding_window=5, sliding_window_pattern=2)
        yield f"{family}_pattern_1", family, dict(head, sliding_window=5, sliding_window_pattern=1)
        for kinds in (("full", "full", "sliding"), ("sliding", "full", "sliding"), ("sliding", "sliding", "full"),
                      ("full", "full", "full"), ("sliding", "sliding", "sliding")):
            yield f"{family}_{'_'.join(kinds)}", family, dict(head, sliding_window=5, layer_types=mixed_layers(*kinds))
        yield f"{family}_activation", family, dict(head, hidden_activation="gelu")
        yield f"{family}_old_activation", family, dict(head, hidden_act="gelu")
        yield f"{family}_both_ways", family, dict(head, use_bidirectional_attention=True)
        yield f"{family}_base", family, dict(head, rope_theta=77.0)
        yield f"{family}_local_base", family, dict(head, rope_theta=77.0, rope_local_base_freq=55.0)
        yield f"{family}_scaling", family, dict(head, rope_scaling=full)
        yield f"{family}_old_scaling", family, dict(head, rope_theta=77.0, rope_scaling=dict(type="linear", factor=8.0))
        yield f"{family}_nested", family, dict(head, rope_parameters=dict(
            full_attention=full, sliding_attention=dict(rope_type="default", rope_theta=55.0)))
        yield f"{family}_nested_alone", family, dict(head, rope_parameters=dict(full_attention=full))
        yield f"{family}_nested_null", family, dict(head, rope_theta=77.0, rope_parameters=dict(
            full_attention=None, sliding_attention=dict(rope_type="linear", factor=2.0)))
        yield f"{family}_nested_yarn", family, dict(head, rope_parameters=dict(full_attention=dict(
            YARN, truncate=False, beta_fast=4, **{TRAINED: 16})), **{TRAINED: 20})
        yield f"{family}_nested_dynamic", family, dict(head, max_position_embeddings=16, rope_parameters=dict(
            full_attention=dict(rope_type="dynamic", factor=3.0)))
        yield f"{family}_heads", family, dict(head, num_attention_heads=6)
        yield f"{family}_kv_heads_absent", family, dict(head, num_key_value_heads="absent")
        yield f"{family}_epsilon_absent", family, dict(head, rms_norm_eps="absent")
    for family in ("qwen2", "qwen3"):
        head = dict(head_dim=8)
        for layers in (0, 1, 2, 3, 7, None, "absent"):
            yield f"{family}_windows_from_{layers}", family, dict(head, **WINDOWS, max_window_layers=layers)
        yield f"{family}_window_absent", family, dict(head, use_sliding_window=True, max_window_layers=1,
                                                      max_position_embeddings=32)
        yield f"{family}_window_null_used", family, dict(head, use_sliding_window=True, sliding_window=None,
                                                         max_window_layers=1)
        yield f"{family}_types_over_layers", family, dict(head, **WINDOWS, max_window_layers=0, layer_types=mixed_layers(
            "full", "full", "sliding"))
        yield f"{family}_types_without_use", family, dict(head, sliding_window=5, layer_types=mixed_layers(
            "full", "sliding", "sliding"))
        yield f"{family}_types_between", family, dict(head, **WINDOWS, layer_types=mixed_layers(
            "sliding", "full", "sliding"))
        yield f"{family}_types_null", family, dict(head, **WINDOWS, max_window_layers=1, layer_types=None)
    yield "gpt2_both_names", "gpt2", dict(n_positions=48, max_position_embeddings=32, n_head=2, num_attention_heads=4)
    yield "gpt2_other_names", "gpt2", dict(n_positions="absent", max_position_embeddings=32)


def as_file(family, keys):
    config = {**(GPT2 if family == "gpt2" else SIZES), "model_type": family, **keys}
    return {key: value for key, value in config.items() if not isinstance(value, str) or value != "absent"}


def observed(config):
    with tempfile.TemporaryDirectory() as folder:
        pathlib.Path(folder, "config.json").write_text(json.dumps(config))
        read = transformers.AutoConfig.from_pretrained(folder)
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(read, attn_implementation="eager").eval()
    result = {}
    if read.model_type == "gpt2":
        model(torch.arange(LONG)[None])
        return dict(context=model.transformer.wpe.num_embeddings, heads=model.transformer.h[0].attn.num_heads)
    rotary, gemma3 = model.model.rotary_emb, read.model_type == "gemma3_text"
    full = "full_attention_" if gemma3 and hasattr(rotary, "full_attention_inv_freq") else ""
    windowed = "sliding_attention_" if gemma3 and hasattr(rotary, "sliding_attention_inv_freq") else full
    full = full or windowed
    for name, length in (("frequencies", SHORT), ("long_frequencies", LONG)):
        run = model(torch.arange(length)[None], output_attentions=True)
        result[name] = getattr(rotary, full + "inv_freq").tolist()
        if gemma3:
            result["window_" + name] = getattr(rotary, windowed + "inv_freq").tolist()
    attention = model.model.layers[0].self_attn
    if read.model_type.startswith("gemma"):
        result |= dict(scaling=attention.scaling, attention_cap=None if gemma3 else attention.attn_logit_softcapping,
                       logit_cap=read.final_logit_softcapping)
    return dict(result, amplitude=float(getattr(rotary, full + "attention_scaling")),
                attended=[int((weights[0, 0, -1] > 0).sum()) for weights in run.attentions],
                window=getattr(read, "sliding_window", None) if read.model_type != "llama" else None,
                kv_heads=attention.config.num_key_value_heads, head_width=attention.head_dim,
                epsilon=getattr(model.model.norm, "variance_epsilon", None) or model.model.norm.eps)


def main():
    transformers.logging.set_verbosity_error()
    written = {}
    for name, family, keys in cases():
        config = as_file(family, keys)
        try:
            written[name] = dict(config=config, **observed(config))
        except Exception as error:  # of any kind: the model cannot be used
            written[name] = dict(config=config, refused=f"{type(error).__name__}: {error}".splitlines()[0][:160])
        print(name, written[name].get("refused", "ok"))
    lines = ",\n".join(f"{json.dumps(name)}: {json.dumps(case)}" for name, case in written.items())
    (pathlib.Path(__file__).parent / "configs.json").write_text(
        f'{{"transformers": {json.dumps(transformers.__version__)}, "cases": {{\n{lines}\n}}}}\n')


if __name__ == "__main__":
    main()
