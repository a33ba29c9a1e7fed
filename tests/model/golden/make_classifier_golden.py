#!/usr/bin/env python3
"""Writes classifiers/<name>/, small random models of transformers' ForSequenceClassification, and beside each
<name>.json and <name>.bin: what transformers computes with it; and classifiers/<name>_lora/, the same with PEFT's
task type SEQ_CLS.

Run by hand, with transformers 5, peft and scikit-learn: python3 make_classifier_golden.py
The format is that of make_family_golden.py, and of the names there:
  tokens               (steps, B, T) int32, a batch of texts of several lengths, padded behind
  targets              (steps, B, T) int32, at each text's last token its label, elsewhere -1
  logits               (B, classes) of the first batch
  gradient/<name>      of the first batch's mean loss, by transformers' or PEFT's names
  step_loss, step_gradient_norm  (steps), with AdamW
metrics.json has labels and predictions of some sizes, and what scikit-learn says of them.
"""

import json
import pathlib
import shutil

import peft
import sklearn.metrics
import torch
import transformers

from golden_file import write_golden
from make_family_golden import OPTIMIZER, SIZES, TEXT_CONFIGS

HERE = pathlib.Path(__file__).parent / "classifiers"
BATCH, LENGTH, STEPS, PADDING = 3, 24, 10, 0
NAMES = ["negative", "neutral", "positive"]
GPT2 = dict(n_positions=32, n_embd=16, n_layer=2, n_head=4)
CASES = {
    "gpt2": ("GPT2", GPT2, NAMES),
    "llama": ("Llama", dict(rms_norm_eps=1e-5), NAMES[::2]),
    "qwen3": ("Qwen3", dict(head_dim=8, tie_word_embeddings=True), NAMES),
    # The logits of classes are not capped.
    "gemma2": ("Gemma2", dict(hidden_size=20, head_dim=8, query_pre_attn_scalar=6, sliding_window=7,
                              attn_logit_softcapping=2.0, final_logit_softcapping=0.5), NAMES),
}
TARGETS = {"gpt2": ["c_attn"], "llama": ["q_proj", "v_proj"]}


def make_model(family, more, names, seed):
    torch.manual_seed(seed)
    config = getattr(transformers, TEXT_CONFIGS.get(family, family + "Config"))(
        **{**SIZES, **more, "pad_token_id": PADDING}, id2label=dict(enumerate(names)),
        label2id={name: i for i, name in enumerate(names)})
    if family == "GPT2":
        config.resid_pdrop = config.embd_pdrop = config.attn_pdrop = 0.0
    model = getattr(transformers, family + "ForSequenceClassification")(config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            normal = torch.randn(parameter.shape)
            norm = "norm" in name or ".ln_" in name
            one = 0 if family.startswith("Gemma") or name.endswith("bias") else 1
            parameter.copy_(one + 0.1 * normal if norm else 0.2 * normal)
    return model.eval()


def open_model(folder, adapter, dtype):
    model = transformers.AutoModelForSequenceClassification.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager")
    if adapter is not None:
        model = peft.PeftModel.from_pretrained(model, adapter, is_trainable=True)
    return model.to(dtype).eval()


def run(folder, adapter, tokens, labels, dtype):
    model = open_model(folder, adapter, dtype)
    named = {name: w for name, w in model.named_parameters() if w.requires_grad}
    groups = [dict(params=[w for w in named.values() if w.dim() >= 2], weight_decay=OPTIMIZER["weight_decay"]),
              dict(params=[w for w in named.values() if w.dim() < 2], weight_decay=0.0)]
    optimizer = torch.optim.AdamW(groups, lr=OPTIMIZER["learning_rate"], eps=OPTIMIZER["epsilon"],
                                  betas=(OPTIMIZER["beta1"], OPTIMIZER["beta2"]))
    result, losses, norms = {}, [], []
    for step in range(len(tokens)):
        # A padded place whose window holds padding alone is NaN in eager attention, and spreads in backward.
        mask = None if model.config.model_type == "gemma2" else (tokens[step] != PADDING).long()
        output = model(input_ids=tokens[step], attention_mask=mask, labels=labels[step])
        optimizer.zero_grad()
        output.loss.backward()
        if step == 0:
            result["logits"] = output.logits.detach()
            result |= {"gradient/" + name.replace(".default", "").replace(".modules_to_save", ""): w.grad.clone()
                       for name, w in named.items()}
        losses.append(output.loss.item())
        norms.append(torch.nn.utils.clip_grad_norm_(named.values(), OPTIMIZER["clip_norm"]).item())
        optimizer.step()
    result["step_loss"] = torch.tensor(losses, dtype=torch.float64)
    result["step_gradient_norm"] = torch.tensor(norms, dtype=torch.float64)
    return result


def write(name, folder, adapter, classes, seed):
    torch.manual_seed(100 + seed)
    tokens = torch.randint(1, SIZES["vocab_size"], (STEPS, BATCH, LENGTH))
    lengths = torch.randint(1, LENGTH + 1, (STEPS, BATCH))
    labels = torch.randint(classes, (STEPS, BATCH))
    places = torch.arange(LENGTH)
    tokens[places >= lengths[:, :, None]] = PADDING
    targets = torch.where(places == lengths[:, :, None] - 1, labels[:, :, None], -1)
    exact, single = (run(folder, adapter, tokens, labels, dtype) for dtype in (torch.float64, torch.float32))
    index = write_golden(HERE / name, dict(tokens=tokens, targets=targets, **exact), single,
                         transformers=transformers.__version__, peft=peft.__version__, optimizer=OPTIMIZER)
    print(name, {k: f"{v['fp32_error']:.1e}" for k, v in index.items() if k in ("logits", "step_loss")})


def metrics():
    rows = []
    for seed, (classes, count) in enumerate([(2, 1), (2, 30), (3, 40), (5, 12), (7, 4)]):
        torch.manual_seed(seed)
        labels, predictions = torch.randint(classes, (2, count)).tolist()
        row = dict(classes=classes, labels=labels, predictions=predictions,
                   accuracy=sklearn.metrics.accuracy_score(labels, predictions),
                   macro=sklearn.metrics.f1_score(labels, predictions, average="macro", zero_division=0))
        if classes == 2:
            row["binary"] = sklearn.metrics.f1_score(labels, predictions, average="binary", zero_division=0)
        rows.append(row)
    (HERE / "metrics.json").write_text(json.dumps(rows) + "\n")


def main():
    shutil.rmtree(HERE, ignore_errors=True)
    HERE.mkdir()
    for seed, (name, (family, more, names)) in enumerate(CASES.items()):
        folder = HERE / name
        make_model(family, more, names, seed).save_pretrained(folder)
        write(name, folder, None, len(names), seed)
        if name not in TARGETS:
            continue
        torch.manual_seed(50 + seed)
        adapter = HERE / (name + "_lora")
        config = peft.LoraConfig(task_type="SEQ_CLS", r=4, lora_alpha=8, target_modules=TARGETS[name])
        model = peft.get_peft_model(open_model(folder, None, torch.float32), config)
        with torch.no_grad():
            for key, parameter in model.named_parameters():
                if parameter.requires_grad:
                    parameter.copy_(0.2 * torch.randn(parameter.shape))
        model.save_pretrained(adapter)
        (adapter / "README.md").unlink(missing_ok=True)
        path = adapter / "adapter_config.json"
        path.write_text(path.read_text().replace(str(folder), name))
        write(name + "_lora", folder, adapter, len(names), seed)
    metrics()


if __name__ == "__main__":
    main()
