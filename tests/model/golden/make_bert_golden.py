#!/usr/bin/env python3
"""Writes encoders/<name>/, small random BERTs of transformers, and beside each <name>.json and <name>.bin: what
transformers computes with it; and encoders/classifier_lora/, adapters of PEFT's task type SEQ_CLS.

Run by hand, with transformers 5 and peft: python3 make_bert_golden.py
The format is that of make_classifier_golden.py, but that
  targets   have a text's label at its first token, or the tokens that are masked at their places
  starts    (steps, B, T) int32, where the document of each place begins: padding is one of its own
  logits    of the places with targets of the first batch, in their order
"""

import pathlib
import shutil

import peft
import torch
import transformers

from golden_file import write_golden
from make_family_golden import OPTIMIZER

HERE = pathlib.Path(__file__).parent / "encoders"
BATCH, LENGTH, STEPS, PADDING = 3, 24, 10, 0
NAMES = ["negative", "neutral", "positive"]
SIZES = dict(vocab_size=37, max_position_embeddings=32, hidden_size=16, intermediate_size=24, num_hidden_layers=2,
             num_attention_heads=4, pad_token_id=PADDING)
CASES = {
    "classifier": ("BertForSequenceClassification", dict(id2label=dict(enumerate(NAMES)), layer_norm_eps=1e-3,
                                                         label2id={name: i for i, name in enumerate(NAMES)})),
    "masked": ("BertForMaskedLM", {}),
}


def make_model(architecture, more, seed):
    torch.manual_seed(seed)
    model = getattr(transformers, architecture)(transformers.BertConfig(**{**SIZES, **more}))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            normal = torch.randn(parameter.shape)
            one = 1 if name.endswith("weight") else 0
            parameter.copy_(one + 0.1 * normal if "LayerNorm" in name else 0.2 * normal)
    return model.eval()


def open_model(folder, architecture, adapter, dtype):
    model = getattr(transformers, architecture).from_pretrained(folder, dtype=torch.float32,
                                                                attn_implementation="eager")
    if adapter is not None:
        model = peft.PeftModel.from_pretrained(model, adapter, is_trainable=True)
    return model.to(dtype).eval()


def run(model, tokens, labels, targets):
    named = {name: w for name, w in model.named_parameters() if w.requires_grad}
    groups = [dict(params=[w for w in named.values() if w.dim() >= 2], weight_decay=OPTIMIZER["weight_decay"]),
              dict(params=[w for w in named.values() if w.dim() < 2], weight_decay=0.0)]
    optimizer = torch.optim.AdamW(groups, lr=OPTIMIZER["learning_rate"], eps=OPTIMIZER["epsilon"],
                                  betas=(OPTIMIZER["beta1"], OPTIMIZER["beta2"]))
    result, losses, norms = {}, [], []
    for step in range(len(tokens)):
        output = model(input_ids=tokens[step], attention_mask=(tokens[step] != PADDING).long(), labels=labels[step])
        optimizer.zero_grad()
        output.loss.backward()
        if step == 0:
            logits = output.logits.detach()
            result["logits"] = logits if logits.dim() == 2 else logits[targets[0] >= 0]
            result |= {"gradient/" + name.replace(".default", "").replace(".modules_to_save", ""): w.grad.clone()
                       for name, w in named.items()}
        losses.append(output.loss.item())
        norms.append(torch.nn.utils.clip_grad_norm_(named.values(), OPTIMIZER["clip_norm"]).item())
        optimizer.step()
    result["step_loss"] = torch.tensor(losses, dtype=torch.float64)
    result["step_gradient_norm"] = torch.tensor(norms, dtype=torch.float64)
    return result


def write(name, folder, architecture, adapter, seed):
    torch.manual_seed(100 + seed)
    tokens = torch.randint(1, SIZES["vocab_size"], (STEPS, BATCH, LENGTH))
    lengths = torch.randint(1, LENGTH + 1, (STEPS, BATCH))
    lengths[:, 0] = LENGTH
    places = torch.arange(LENGTH).expand(STEPS, BATCH, LENGTH)
    is_padding = places >= lengths[:, :, None]
    tokens[is_padding] = PADDING
    starts = torch.where(is_padding, lengths[:, :, None], 0)
    if architecture == "BertForMaskedLM":
        targets = torch.where(is_padding | (torch.rand(tokens.shape) > 0.3), -1, tokens)
        # The loss of ranks is the mean of all targets, so each rank has some.
        targets[:, :, 0] = tokens[:, :, 0]
        tokens = torch.where((targets >= 0) & (torch.rand(tokens.shape) < 0.8), 1, tokens)
        labels = torch.where(targets < 0, -100, targets)
    else:
        labels = torch.randint(len(NAMES), (STEPS, BATCH))
        targets = torch.where(places == 0, labels[:, :, None], -1)
    exact, single = (run(open_model(folder, architecture, adapter, dtype), tokens, labels, targets)
                     for dtype in (torch.float64, torch.float32))
    index = write_golden(HERE / name, dict(tokens=tokens, targets=targets, starts=starts, **exact), single,
                         transformers=transformers.__version__, peft=peft.__version__, optimizer=OPTIMIZER)
    print(name, {k: f"{v['fp32_error']:.1e}" for k, v in index.items() if k in ("logits", "step_loss")})


def main():
    shutil.rmtree(HERE, ignore_errors=True)
    HERE.mkdir()
    for seed, (name, (architecture, more)) in enumerate(CASES.items()):
        make_model(architecture, more, seed).save_pretrained(HERE / name)
        write(name, HERE / name, architecture, None, seed)
    architecture, folder, adapter = CASES["classifier"][0], HERE / "classifier", HERE / "classifier_lora"
    torch.manual_seed(50)
    config = peft.LoraConfig(task_type="SEQ_CLS", r=4, lora_alpha=8)
    model = peft.get_peft_model(open_model(folder, architecture, None, torch.float32), config)
    print("PEFT adapts", sorted(model.peft_config["default"].target_modules))
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.copy_(0.2 * torch.randn(parameter.shape))
    model.save_pretrained(adapter)
    (adapter / "README.md").unlink(missing_ok=True)
    path = adapter / "adapter_config.json"
    path.write_text(path.read_text().replace(str(folder), "classifier"))
    write("classifier_lora", folder, architecture, adapter, 5)


if __name__ == "__main__":
    main()
