#!/usr/bin/env python3
"""Writes choices/: small models that have read a little of tests/text, and what lm-evaluation-harness says of them.

Run by hand, with transformers, lm-eval, tokenizers and datasets: python3 make_choice_golden.py
choices/<model>/ is a folder as transformers writes it, of a tokenizer of tests/model/tokenizers. choices.json has
  lm_eval     the version of lm-evaluation-harness
  files       lines of questions: hellaswag, in the form of HellaSwag; plain, with "question", "choices", "answer"
  models      by name and file: what the harness says, computed in float64. scores are the log-likelihoods of each
              question's choices, the others its figures
The questions are of the text that the models have not read. Some are longer than the models' context.
"""

import json
import logging
import pathlib
import random
import shutil
import tempfile

import datasets
import lm_eval
import torch
import transformers
from lm_eval.models.huggingface import HFLM
from lm_eval.tasks.hellaswag.utils import process_docs

FOLDER = pathlib.Path(__file__).parent
TESTS = FOLDER.parent.parent
CONTEXT = 64
TEXT = (TESTS / "text" / "alice.txt").read_text()
FIGURES = {"acc": "acc,none", "acc_stderr": "acc_stderr,none", "acc_norm": "acc_norm,none",
           "acc_norm_stderr": "acc_norm_stderr,none"}


def make_gpt2(vocab):
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(
        vocab_size=vocab, n_positions=CONTEXT, n_embd=24, n_layer=2, n_head=4, bos_token_id=0, eos_token_id=0,
        resid_pdrop=0, embd_pdrop=0, attn_pdrop=0))


def make_llama(vocab):
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(
        vocab_size=vocab, hidden_size=24, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=CONTEXT, bos_token_id=0, eos_token_id=1,
        tie_word_embeddings=False))


MODELS = {"gpt2": (make_gpt2, "gpt2"), "llama": (make_llama, "llama3")}


def train(model, tokens, steps=400, batch=16):
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    for _ in range(steps):
        at = torch.randint(len(tokens) - CONTEXT, (batch,))
        rows = torch.stack([tokens[i:i + CONTEXT] for i in at.tolist()])
        loss = model(rows, labels=rows).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return loss.item()


def questions(rng, text):
    """Pairs of (words before, choices, index of the right one)."""
    words = text.split()
    for i in range(40):
        before = 90 if i % 10 == 9 else rng.randint(4, 16)  # the former is longer than the context
        length = rng.randint(2, 9)
        at = rng.randrange(len(words) - before - length)
        right = words[at + before:at + before + length]
        choices = [right]
        for _ in range(3):
            count = max(1, length + rng.randint(-2, 4))
            other = rng.randrange(len(words) - count)
            choices.append(words[other:other + count])
        order = list(range(4))
        rng.shuffle(order)
        yield words[at:at + before], [" ".join(choices[k]) for k in order], order.index(0)


def hellaswag_lines(rng, text):
    lines = []
    for i, (before, endings, label) in enumerate(questions(rng, text)):
        half = len(before) // 2
        ctx_a, ctx_b = " ".join(before[:half]), " ".join(before[half:])
        if i % 5 == 1:
            ctx_a = f"[header] {ctx_a} [title] Next  step"
            endings[1] = endings[1] + " [substeps]  then [unclosed"
        if i % 5 == 2:
            ctx_b = "él DIJO " + ctx_b
        if i % 5 == 3:
            ctx_b = ""
        endings[0] = f" {endings[0]} "
        lines.append(dict(ind=i, activity_label="Reading a book", ctx_a=ctx_a, ctx_b=ctx_b,
                          ctx=f"{ctx_a} {ctx_b}", endings=endings, label=label if i % 2 else str(label)))
    return lines


def plain_lines(rng, text):
    lines = []
    for i, (before, choices, answer) in enumerate(questions(rng, text)):
        choices = choices[:2 + i % 3]
        # A space at the end of a question belongs to its choices.
        lines.append(dict(question=" ".join(before) + ("  " if i % 4 == 0 else ""), choices=choices,
                          answer=answer % len(choices)))
    return lines


def evaluate(model, tokenizer, lines, is_hellaswag):
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "questions.jsonl"
        # Columns of one type, as the hub has them; the label of HellaSwag is a text there.
        rows = [line | {"label": str(line["label"])} for line in lines] if is_hellaswag else lines
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        task = dict(task="questions", dataset_path="json", dataset_kwargs=dict(data_files={"validation": str(path)}),
                    output_type="multiple_choice", validation_split="validation", doc_to_choice="{{choices}}",
                    metric_list=[dict(metric=m, aggregation="mean", higher_is_better=True) for m in ("acc", "acc_norm")])
        if is_hellaswag:
            task |= dict(process_docs=process_docs, doc_to_text="{{query}}", doc_to_target="{{label}}",
                         doc_to_choice="choices")
        else:
            task |= dict(doc_to_text="{{question}}", doc_to_target="answer", doc_to_choice="choices")
        lm = HFLM(pretrained=model.double(), tokenizer=tokenizer, batch_size=1, max_length=CONTEXT, device="cpu")
        result = lm_eval.simple_evaluate(lm, tasks=[task], log_samples=True, bootstrap_iters=1000,
                                         random_seed=0, numpy_random_seed=0, torch_random_seed=0)
    figures = result["results"]["questions"]
    samples = sorted(result["samples"]["questions"], key=lambda s: s["doc_id"])
    document = {name: figures[key] for name, key in FIGURES.items()}
    document["scores"] = [[float(r[0][0]) for r in s["resps"]] for s in samples]
    return document


def main():
    logging.disable(logging.WARNING)
    datasets.disable_progress_bars()
    torch.set_num_threads(1)
    read, held_out = TEXT[:len(TEXT) * 4 // 5], TEXT[len(TEXT) * 4 // 5:]
    lines = dict(hellaswag=hellaswag_lines(random.Random(1), held_out), plain=plain_lines(random.Random(2), held_out))
    document = dict(lm_eval=lm_eval.__version__, transformers=transformers.__version__,
                    files={name: "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in of)
                           for name, of in lines.items()}, models={})
    shutil.rmtree(FOLDER / "choices", ignore_errors=True)
    for name, (make, tokenizer_name) in MODELS.items():
        torch.manual_seed(7)
        file = TESTS / "model" / "tokenizers" / f"{tokenizer_name}.json"
        tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_file=str(file))
        tokenizer.eos_token = tokenizer.bos_token = tokenizer.convert_ids_to_tokens(0)
        model = make(len(tokenizer))
        loss = train(model, torch.tensor(tokenizer(read)["input_ids"]))
        folder = FOLDER / "choices" / name
        model.eval().save_pretrained(folder)
        (folder / "generation_config.json").unlink(missing_ok=True)
        (folder / "model.safetensors").chmod(0o644)
        document["models"][name] = {kind: evaluate(model, tokenizer, of, kind == "hellaswag")
                                    for kind, of in lines.items()}
        print(name, len(tokenizer), loss, {k: {f: v[f] for f in FIGURES} for k, v in document["models"][name].items()})
    text = json.dumps(document, ensure_ascii=False).replace("[[", "\n[[").replace("], [", "],\n[")
    (FOLDER / "choices" / "choices.json").write_text(text + "\n")


if __name__ == "__main__":
    main()
