"""Makes tokenizers/*.json and tokenizers/golden.json: small byte-level BPEs with the patterns of GPT-2, Llama 3 and
Qwen, and BPEs of pieces as Llama 2, Phi-3 and newer conversions of SentencePiece have them, trained on tests/text/alice.txt by the package `tokenizers`, and the ids that it gives for texts.

    python3 -m venv venv && venv/bin/pip install tokenizers==0.23.3
    venv/bin/python tests/model/make_tokenizers.py [NAME...]

With names only these are made anew, and the others stay as they are.
"""
import json
import random
import sys
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

HERE = Path(__file__).parent
ALICE = (HERE.parent / "text" / "alice.txt").read_text(encoding="utf-8")
OUT = HERE / "tokenizers"

LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)
QWEN = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")

# What the trainer sees besides: numbers, other scripts, code, emoji.
MORE = """
1234567 1984 2026 3.14159 42 100 1000 10000 the 1st 2nd 3rd
for (int i = 0; i < n; ++i) {\r\n\tsum += x[i];\r\n}\n\n    return sum;\n
Größe Straße déjà vu naïve façade Ελληνικά Привет мир שלום العربية हिन्दी 日本語のテキスト 中文文本 한국어
👍🏽 👩‍👩‍👧‍👦 🎉 I'm don't we'll they've it's you're he'd
""" * 20


def split_by(pattern):
    return pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(pattern), behavior="isolated", invert=False),
            pre_tokenizers.ByteLevel(add_prefix_space=False, trim_offsets=True, use_regex=False),
        ]
    )


def trained(name, pre_tokenizer, vocabulary, special, ignore_merges=False):
    tokenizer = Tokenizer(models.BPE(ignore_merges=ignore_merges))
    tokenizer.pre_tokenizer = pre_tokenizer
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        special_tokens=special,
        show_progress=False,
    )
    tokenizer.train_from_iterator([ALICE, MORE], trainer)
    return tokenizer


def gpt2():
    tokenizer = trained("gpt2", pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True), 600, [])
    # As in the published file: the only added token is normalized, the merges are pairs of words.
    tokenizer.add_special_tokens([AddedToken("<|endoftext|>", normalized=True, special=True)])
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    made = json.loads(tokenizer.to_str())
    made["model"]["merges"] = [" ".join(pair) for pair in made["model"]["merges"]]
    return made


def llama3():
    tokenizer = trained("llama3", split_by(LLAMA3), 520, [], ignore_merges=True)
    special = ["<|begin_of_text|>", "<|end_of_text|>", "<|eot_id|>", "<|eot|>"]
    tokenizer.add_special_tokens([AddedToken(text, normalized=False, special=True) for text in special])
    begin = tokenizer.token_to_id("<|begin_of_text|>")
    tokenizer.post_processor = processors.Sequence(
        [
            processors.ByteLevel(trim_offsets=False),
            processors.TemplateProcessing(
                single="<|begin_of_text|> $A",
                pair="<|begin_of_text|> $A <|begin_of_text|>:1 $B:1",
                special_tokens=[("<|begin_of_text|>", begin)],
            ),
        ]
    )
    made = json.loads(tokenizer.to_str())
    # A word that no merges make, which ignore_merges finds all the same.
    vocabulary = made["model"]["vocab"]
    size = len(vocabulary)
    vocabulary["ĠTweedledum"] = size
    for token in made["added_tokens"]:
        token["id"] += 1
    for part in made["post_processor"]["processors"][1]["special_tokens"].values():
        part["ids"] = [token + 1 for token in part["ids"]]
    return made


def qwen():
    tokenizer = trained("qwen", split_by(QWEN), 520, [])
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.add_special_tokens(
        [AddedToken(text, normalized=False, special=True) for text in ("<|endoftext|>", "<|im_start|>", "<|im_end|>")]
    )
    tokenizer.add_tokens(
        [
            AddedToken("<tool_call>", normalized=False, special=False),
            AddedToken("<tool>", normalized=True, special=False),
            AddedToken("two words", normalized=False, special=False),
            AddedToken("é", normalized=True, special=False),
        ]
    )
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    return json.loads(tokenizer.to_str())


def pieces(vocabulary, added):
    """Trained on words with a mark in front, so that no piece reaches over a space; then without a pre-tokenizer."""
    tokenizer = Tokenizer(models.BPE(byte_fallback=True, fuse_unk=True, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    byte_tokens = [f"<0x{byte:02X}>" for byte in range(256)]
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary, special_tokens=["<unk>", "<s>", "</s>", *byte_tokens], show_progress=False,
        limit_alphabet=90,
    )
    tokenizer.train_from_iterator([ALICE.replace("\n", " "), MORE.replace("\n", " ")], trainer)
    made = json.loads(tokenizer.to_str())
    made["added_tokens"] = [token for token in made["added_tokens"] if token["id"] < 3]
    tokenizer = Tokenizer.from_str(json.dumps(made))
    tokenizer.pre_tokenizer = None
    tokenizer.add_special_tokens(added)
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", pair="<s> $A <s>:1 $B:1",
                                                             special_tokens=[("<s>", 1)])
    unmark = [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence([*unmark, decoders.Strip(content=" ", left=1, right=0)])
    return tokenizer


def llama2():
    tokenizer = pieces(560, [])
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")])
    return json.loads(tokenizer.to_str())


def phi3():
    right = ["<|end|>", "<|user|>", "<|assistant|>"]
    added = [AddedToken("<|endoftext|>", normalized=False)]
    added += [AddedToken(text, rstrip=True, normalized=False) for text in right]
    added += [AddedToken("<|left|>", lstrip=True, normalized=False)]
    tokenizer = pieces(560, added)
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")])
    return json.loads(tokenizer.to_str())


def metaspace(scheme):
    tokenizer = pieces(540, [])
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme, split=False)
    return json.loads(tokenizer.to_str())


def gemma():
    """Spaces become marks, so that there is none to split at."""
    tokenizer = pieces(550, [AddedToken("\n\n", normalized=False, special=False), AddedToken("<start_of_turn>", normalized=False)])
    tokenizer.normalizer = normalizers.Replace(" ", "\u2581")
    tokenizer.pre_tokenizer = pre_tokenizers.Split(" ", behavior="merged_with_previous")
    tokenizer.decoder = decoders.Sequence([decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()])
    return json.loads(tokenizer.to_str())


def texts():
    yield from [
        "<s>a</s> b</s><s> c", "<|user|>\nHi <|end|>  \n <|assistant|>\u3000x <|left|>y  <|left|> z", " <s> </s>", "\u2581a \u2581",
        "x<|end|><|end|> <|user|>", "<0x41> \n\n<0x0A>",

        "",
        " ",
        "a",
        "Hello, world!",
        "\n",
        "\r\n",
        "one\r\ntwo\r\n\r\nthree\r\n",
        "trailing spaces   ",
        "   leading spaces",
        "two  spaces   three    four",
        "tab\tand\t\ttabs \t mixed",
        " " * 100 + "x",
        "x" + " " * 100,
        "\n" * 50 + "x" + "\n \n  \n",
        "end \n",
        " \n x",
        "1234567",
        "0 12 345 6789 01234567890 1,234,567.89",
        "x1y22z333w4444",
        "\u00b2\u00bd\u2167\u0663\u096a\uff15",
        "I'm you're he'd she'll it's they've don't",
        "I'M YOU'RE HE'D SHE'LL IT'S THEY'VE DON'T I'm'S 'S ''s 'sausage",
        "'\u017f it'\u017f IT'\u017f \u2019s",
        "a\u0085b \u0085 \u0085\u0085c",
        "a\u180eb \u180e \u180e\u180ec !\u180e!",
        "a\ufeffb \ufeff \ufeffc",
        "a\u00a0b \u00a0 c\u2003\u2003d\u3000e\u2028f\u2029g\u202fh\u205fi\u1680j\u200bk",
        "e\u0301 a\u0308 o\u0302\u0323 o\u0323\u0302 \u0301x n\u0303o \u1112\u1161\u11ab \u0958\u0915\u093c",
        "\u212b \u2126 \u037e \u1fef \u212a \ufb1d \uf900 \U0002f800",
        "\u00e9 e\u0301 \u00e9e\u0301",
        "x\u0345\u1ac2\u0334 \U00011935\U00011930 x\u0345\u08ca\u0301 e\u1df6\u0301",
        "Z\u0351\u036b\u0343a\u0361l\u0317\u0303g\u0316\u030bo\u0300 text",
        "\u1c89\u1c8a \ua7cb\ua7da x\U000105c0\U00010d4a1 \U00031350\U0002ebf0 \U00010d40\U00011bf0\U0001e5f1 \U00016d40",
        "\u0378 \U000e0001 \U0010ffff \ue000 \ufffd \ufffe",
        "日本語のテキスト、中文文本。한국어 ไทย العربية שלום हिन्दी বাংলা",
        "👍🏽 👩‍👩‍👧‍👦 🎉🎉🎉 🇩🇪🇯🇵 ❤️",
        "\u0000\u0001\u001f\u007f\u0080\u009f",
        "for (int i = 0; i < n; ++i) {\r\n\tsum += x[i];\n}\n\n\n    return sum;\n",
        "#!/bin/sh\n#!#!\n\n!!!???...---===\n===\r\n",
        "https://example.com/a?b=c&d=%20#e_f",
        "<|endoftext|>",
        "a<|endoftext|>b <|endoftext|> c<|endoftext|><|endoftext|>",
        "<|begin_of_text|>a<|end_of_text|><|eot_id|><|eot|><|eot_i<|eot|",
        "<|im_start|>user\nHi<|im_end|>\n<tool_call><tool>x<tool_cal><tool",
        "<|im_end|>\u0338x <tool>\u0338 <tool>\u0301 two words two  words two wordss",
        "<|<|endoftext|>|> <|endoftext |> <|ENDOFTEXT|>",
        " Tweedledum Tweedledum Tweedledums Tweedledee",
        "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
        "the the the thethethethe " * 3,
        "ha" * 500,
        ALICE[10_000:10_600],
    ]
    chance = random.Random(17)
    alphabet = [
        " ", " ", "  ", "\n", "\r\n", "\t", "'", "'s", "'LL", "a", "b", "E", "the", "ing", "1", "23", "4567", ".", ",",
        "!?", "-", "\u0301", "\u00e9", "\u4e2d", "\u3002", "\u3000", "\u00a0", "\u0085", "\u180e", "\u200d", "🎉", "\u0639",
        "<|endoftext|>", "<tool>", "<", "|", ">", "\u1100", "\u1161", "\u0338", "\u017f", "\u00bd", "\u2167", "_",
    ]  # fmt: skip
    beside_added = ["\u2581", "<s>", "</s>", "<|end|>", "<|left|>", "<|user|>", "<0x41>", " ", "\n", "a", "the", "\u3000"]
    for _ in range(60):
        yield "".join(chance.choices(beside_added, k=chance.randint(1, 20)))
    for _ in range(60):
        yield "".join(chance.choices(alphabet, k=chance.randint(1, 40)))


def main():
    OUT.mkdir(exist_ok=True)
    made = {"gpt2": gpt2(), "llama3": llama3(), "qwen": qwen(), "llama2": llama2(), "phi3": phi3(),
            "metaspace_first": metaspace("first"), "metaspace_always": metaspace("always"),
            "metaspace_never": metaspace("never"), "gemma": gemma()}
    golden = json.loads((OUT / "golden.json").read_text(encoding="utf-8")) if len(sys.argv) > 1 else {}
    chance = random.Random(3)
    for name, content in made.items():
        if len(sys.argv) > 1 and name not in sys.argv[1:]:
            continue
        path = OUT / f"{name}.json"
        path.write_text(json.dumps(content, ensure_ascii=False, separators=(",", ":")) + "\n", encoding="utf-8")
        tokenizer = Tokenizer.from_file(str(path))
        encoded = []
        for text in texts():
            ids = tokenizer.encode(text, add_special_tokens=False).ids
            decoded = tokenizer.decode(ids, skip_special_tokens=False)
            encoded.append([text, ids] + ([decoded] if decoded != text else []))
        size = tokenizer.get_vocab_size()
        drawn = [[chance.randrange(size) for _ in range(chance.randint(1, 12))] for _ in range(60)]
        golden[name] = {
            "vocab_size": size,
            "encoded": encoded,
            "with_special": tokenizer.encode("Hello there").ids,
            "decoded": [[ids, tokenizer.decode(ids, skip_special_tokens=skip), skip] for ids in drawn for skip in (False, True)],
            "alice_ids": len(tokenizer.encode(ALICE, add_special_tokens=False).ids),
            "alice_sum": sum(
                (i + 1) * token for i, token in enumerate(tokenizer.encode(ALICE, add_special_tokens=False).ids)
            ) % 2**32,
        }  # fmt: skip
    lines = json.dumps(golden, ensure_ascii=True, separators=(",", ":")).replace('],["', '],\n["')
    (OUT / "golden.json").write_text(lines + "\n", encoding="utf-8")


main()
