#!/usr/bin/env python3
"""Writes hugging_face/<name>/, small GPT-2 folders as transformers writes them or the hub has them, and
hugging_face.json: what transformers computes with each; and llm_c_<dtype>.bin, by llm.c's own writer.

Run by hand, with each of two versions of transformers and PyTorch:
  python3 make_hugging_face_golden.py v4   # transformers 4.57
  python3 make_hugging_face_golden.py v5   # transformers 5.23; also hub, untied
  python3 make_hugging_face_golden.py llm_c LLM_C   # a clone of karpathy/llm.c, to whose formats v5 is written
hugging_face.json has the batch "tokens" (B, L), and by folder "logits" (B, L, V), computed in fp64 from the weights as
stored, and "loss": the mean over the tokens of each sequence but its first.
"""

import json
import pathlib
import shutil
import sys

import safetensors.torch
import torch
import transformers

HERE = pathlib.Path(__file__).parent
FOLDERS = HERE / "hugging_face"
SIZES = dict(vocab_size=65, n_positions=24, n_embd=12, n_layer=2, n_head=3, bos_token_id=None, eos_token_id=None)


def make_model(seed, **more):
    """Larger than a real initialisation, so that every path carries weight."""
    torch.manual_seed(seed)
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config(**SIZES, **more))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            normal = torch.randn(parameter.shape)
            parameter.copy_(1 + 0.1 * normal if "ln_" in name and name.endswith("weight") else 0.2 * normal)
    return model.eval()


def compute(name):
    """Of the folder, by whatever transformers loads from it."""
    golden_file = HERE / "hugging_face.json"
    golden = json.loads(golden_file.read_text()) if golden_file.exists() else {"folders": {}}
    torch.manual_seed(0)
    tokens = torch.randint(SIZES["vocab_size"], (2, 10))
    model = transformers.AutoModelForCausalLM.from_pretrained(FOLDERS / name, torch_dtype=torch.float32)
    model = model.eval().double()
    with torch.no_grad():
        output = model(tokens, labels=tokens)
    golden["tokens"] = tokens.tolist()
    golden["folders"][name] = {
        "transformers": transformers.__version__,
        "loss": output.loss.item(),
        "logits": [round(x, 9) for x in output.logits.flatten().tolist()],
    }
    golden["folders"] = dict(sorted(golden["folders"].items()))
    golden_file.write_text(json.dumps(golden) + "\n")


def fresh(name):
    shutil.rmtree(FOLDERS / name, ignore_errors=True)
    return FOLDERS / name


def make_v4():
    assert transformers.__version__.startswith("4."), transformers.__version__
    make_model(4).to(torch.bfloat16).save_pretrained(fresh("v4"), max_shard_size="6KB")
    compute("v4")


def make_v5():
    assert transformers.__version__.startswith("5."), transformers.__version__
    make_model(5).save_pretrained(fresh("v5"))
    make_model(6, tie_word_embeddings=False).save_pretrained(fresh("untied"))
    # As openai-community/gpt2: an old config.json, no prefix, masks as tensors.
    model, hub = make_model(7), fresh("hub")
    tensors = {n: t.half().contiguous() for n, t in model.transformer.state_dict().items()}
    for i in range(SIZES["n_layer"]):
        tensors[f"h.{i}.attn.bias"] = torch.tril(torch.ones(24, 24)).view(1, 1, 24, 24)
        tensors[f"h.{i}.attn.masked_bias"] = torch.tensor(-1e4)
    hub.mkdir()
    safetensors.torch.save_file(tensors, hub / "model.safetensors", metadata={"format": "pt"})
    config = dict(SIZES, n_ctx=24, activation_function="gelu_new", architectures=["GPT2LMHeadModel"], attn_pdrop=0.1,
                  embd_pdrop=0.1, resid_pdrop=0.1, initializer_range=0.02, layer_norm_epsilon=1e-05, model_type="gpt2",
                  summary_activation=None, summary_first_dropout=0.1, summary_proj_to_labels=True,
                  summary_type="cls_index", summary_use_proj=True,
                  task_specific_params={"text-generation": {"do_sample": True, "max_length": 50}})
    (hub / "config.json").write_text(json.dumps(config, indent=2))
    for name in ("v5", "untied", "hub"):
        compute(name)


def make_llm_c(clone):
    """The model of v5, by train_gpt2.py's classes."""
    sys.path.insert(0, clone)
    import train_gpt2

    # Its own takes no vocabulary but GPT-2's.
    train_gpt2.pad_vocab = lambda t: torch.nn.functional.pad(t, (0, 0, 0, -t.size(0) % 128))
    sizes = train_gpt2.GPTConfig(block_size=24, vocab_size=65, n_layer=2, n_head=3, n_embd=12)
    model = train_gpt2.GPT(sizes)
    stored = safetensors.torch.load_file(FOLDERS / "v5" / "model.safetensors")
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            value = stored[name]
            is_conv1d = value.dim() == 2 and ".h." in name
            parameter.copy_(value.t() if is_conv1d else value)
    train_gpt2.write_model(model, HERE / "llm_c_fp32.bin", "float32")
    train_gpt2.write_model(model, HERE / "llm_c_bf16.bin", "bfloat16")


if __name__ == "__main__":
    {"v4": make_v4, "v5": make_v5, "llm_c": make_llm_c}[sys.argv[1]](*sys.argv[2:])
