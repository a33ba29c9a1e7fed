"""Makes tokenizers/variants.json: gpt2.json and llama2.json with the pre-tokenizers, normalizers, added tokens and gaps
of other published models, and the ids that the package `tokenizers` gives for texts.

    python3 -m venv venv && venv/bin/pip install tokenizers==0.23.3
    venv/bin/python tests/model/make_tokenizer_variants.py
"""
import json
import random
from pathlib import Path

from tokenizers import Tokenizer

OUT = Path(__file__).parent / "tokenizers"

CL100K = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)
UPPER, LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
REST = r" ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
FRONT = r"[^\r\n\p{L}\p{N}]?"
TEKKEN = rf"{FRONT}{UPPER}*{LOWER}+|{FRONT}{UPPER}+{LOWER}*|\p{{N}}|{REST}"
SUFFIX = "(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
O200K = rf"{FRONT}{UPPER}*{LOWER}+{SUFFIX}|{FRONT}{UPPER}+{LOWER}*{SUFFIX}|\p{{N}}{{1,3}}|{REST}"
DEEPSEEK3 = (
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
).replace('\\"', '"')
BLOOM = " ?[^(\\s|[.,!?…。，、।۔،])]+"
LETTERS = "A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-Ֆ"


def byte_level(use_regex, prefix=False):
    return {"type": "ByteLevel", "add_prefix_space": prefix, "trim_offsets": True, "use_regex": use_regex}


def split(pattern, behavior="Isolated", invert=False):
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": behavior, "invert": invert}


def digits(individual):
    return {"type": "Digits", "individual_digits": individual}


def sequence(*parts):
    return {"type": "Sequence", "pretokenizers": list(parts)}


# Merges across what the splits keep apart, so that a wrong split shows.
MORE = ["1 2", "12 3", "123 4", "Ġ 1", "a 1", ". Ġ", "= Ġ", "=Ġ =", "! !", "! Ċ", "/ /", "Ċ /", "Ċ Ċ", "o W", "e 's", "Ċ a", "Ġ Ġ", "( a", "Ċ Ġ"]

KINDS = {
    "smollm": sequence(digits(True), byte_level(True)),
    "starcoder": sequence(digits(False), byte_level(True)),
    "gpt2_with_prefix": byte_level(True, True),
    "digits_with_prefix": sequence(digits(True), byte_level(True, True)),
    "cl100k": sequence(split(CL100K, "Removed", True), byte_level(False)),
    "tekken": sequence(split(TEKKEN), byte_level(False)),
    "o200k": sequence(split(O200K, "Removed", True), byte_level(False)),
    "deepseek_coder": sequence(
        split("[\r\n]"), split(r"\s?\p{L}+"), split(r"\s?\p{P}+"), split("[一-龥ࠀ-一가-퟿]+"), digits(True), byte_level(False)
    ),
    "deepseek_llm": sequence(
        split("[\r\n]"), split(rf"\s?[{LETTERS}]+"), split(r"\s?[!-/:-~！-／：-～‘-‟　-。]+"), split(r"\s+$"),
        split("[一-龥ࠀ-一가-퟿]+"), digits(True), byte_level(False),
    ),
    "deepseek3": sequence(split(r"\p{N}{1,3}"), split("[一-龥぀-ゟ゠-ヿ]+"), split(DEEPSEEK3), byte_level(False)),
    "falcon3": sequence(
        {"type": "Punctuation", "behavior": "Contiguous"}, byte_level(True), digits(False), split("[0-9][0-9][0-9]")
    ),
    "punctuation": sequence({"type": "Punctuation", "behavior": "Isolated"}, byte_level(True)),
    "bloom": sequence(split(BLOOM), byte_level(False)),
}  # fmt: skip


def base(name):
    return json.loads((OUT / f"{name}.json").read_text(encoding="utf-8"))


def added(content, token, **more):
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    return {"id": token, "content": content, **flags, **more}


def byte_level_variants():
    vocabulary = base("gpt2")["model"]["vocab"]
    merges = [merge for merge in MORE if merge not in base("gpt2")["model"]["merges"]]
    for name, pre_tokenizer in KINDS.items():
        more = {"<|endoftext|>": 600}
        for i, merge in enumerate(merges):
            if merge.replace(" ", "") not in vocabulary:
                more[merge.replace(" ", "")] = 610 + i  # with ids left out, as o200k has it
        patch = {"pre_tokenizer": pre_tokenizer, "model": {"vocab": more}}
        yield name, {"base": "gpt2", "patch": patch, "more_merges": merges}
    missing = {c: None for c in "ĀāĂăĄąĆćĈĉĎďĐđĒÀÁõö÷øùúûüýþÿ" if c in vocabulary}
    plain = {"pre_tokenizer": KINDS["smollm"], "normalizer": {"type": "Sequence", "normalizers": []}}
    for name, model in {
        "bytes_left_out": {},
        "bytes_unknown": {"unk_token": "<|endoftext|>"},
        "bytes_unknown_fused": {"unk_token": "<|endoftext|>", "fuse_unk": True},
    }.items():
        patch = {**plain, "model": {**model, "vocab": {"<|endoftext|>": 600, **missing}}}
        yield name, {"base": "gpt2", "patch": patch, "more_merges": []}
    # Bytes that are added tokens, and take no part in words.
    tokens = [added("<|endoftext|>", 600), added("õ", 601, normalized=True, special=False)]
    tokens.append(added("<｜end▁of▁sentence｜>", 602, normalized=True))
    vocab = {"<|endoftext|>": 600, "<｜end▁of▁sentence｜>": 602}
    patch = {"pre_tokenizer": KINDS["deepseek_coder"], "added_tokens": tokens, "model": {"vocab": {**vocab, "õ": 601}}}
    yield "bytes_added", {"base": "gpt2", "patch": patch, "more_merges": []}


def pieces_variants():
    file = base("llama2")
    normalized = [{**token, "normalized": True} for token in file["added_tokens"]]
    replace = {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"}
    only_replace = {"type": "Sequence", "normalizers": [replace]}
    decoder = {"type": "Sequence", "decoders": file["decoder"]["decoders"][:3]}
    metaspace = {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "first", "split": True}
    yield "llama2_normalized", {"base": "llama2", "patch": {"added_tokens": normalized}, "more_merges": []}
    patch = {"added_tokens": normalized, "normalizer": only_replace, "decoder": decoder}
    yield "yi", {"base": "llama2", "patch": patch, "more_merges": []}
    more = {"e\u2581": 570, "\u2581\u2581": 571, "a\u2581b": 572}
    patch = {"normalizer": None, "pre_tokenizer": metaspace, "model": {"vocab": more}}
    yield "metaspace_split", {"base": "llama2", "patch": patch, "more_merges": ["e \u2581", "\u2581 \u2581"]}
    patch = {**patch, "added_tokens": normalized}
    yield "metaspace_normalized", {"base": "llama2", "patch": patch, "more_merges": ["e \u2581", "\u2581 \u2581"]}


def patched(variant):
    """As the test has it: keys are replaced, those of the model and of its vocabulary one by one; null removes."""
    file = base(variant["base"])

    def replace(target, patch, deep):
        for key, value in patch.items():
            if key in deep:
                replace(target[key], value, deep[key])
            elif value is None:
                target.pop(key, None)
            else:
                target[key] = value

    replace(file, variant["patch"], {"model": {"vocab": {}}})
    file["model"]["merges"] += [merge.split(" ") if variant["base"] == "llama2" else merge for merge in variant["more_merges"]]
    return file


def texts():
    yield from [
        "", " ", "a\x04b", "\x04\x04 \x05a\x06\x07\x08 õ ÿ õõ", "Hello, world!", "x = y == 1 = 2 = =", "a1 12 1234 a12b345678c9",
        "camelCaseWord HelloWORLDs HTMLParser O'Neil's IT'S it's", "a!!\n/b !!!\n\n//c\n", "one\r\ntwo\r\n\r\n three \n  four",
        "trail   \n   lead \t\tx", "  ", "\n\n", "日本語のテキスト、中文。 한국어 हिन्दी العربية ไทย", "e\u0301 a\u0308 \u00e9 \u01c5 \u02b0a \u2160",
        "$5.00 + 3 <= 4 ^ `x` |~ \u00a7 \u20ac\u20ac \u20ac", "...---!!! ?! (a) [b] {c}", "\u00b2\u00bd\u2167\u0663 1\u00b2 x\u00bc3",
        "👍🏽 👩‍👩‍👧 🎉", "\u00a0a \u3000b\u2003 c\u0085d", "<s>a</s> b <s> c<s>d </s><unk> e", "<|endoftext|>a <|endoftext|> b",
        "a<｜end▁of▁sentence｜>b", "the 1st 2nd 3rd, 42%; 3.14", "a=Ġ=b", "\u2581a \u2581b e e\u2581", "x\u2e43y \u061d \u09fd \u166d a\U000113d4",
        "\U00011de0\U00016ff4 \U00010d40 \u1c89\u1c8a \ua7cb \U0001ccf0", "\u2427 \U0001f8b2 \u1b4e \u0897a", "#!/bin/sh\n# a_b __c__\n",
    ]  # fmt: skip
    chance = random.Random(23)
    alphabet = [
        " ", " ", "  ", "\n", "\r\n", "\t", "'s", "'LL", "a", "B", "the", "oW", "1", "23", "4567", ".", ",", "!!", "=", "/", "-", "(",
        "\u0301", "\u00e9", "\u4e2d", "\u3002", "\u00a0", "\x04", "\u00f5", "🎉", "\u0639", "<s>", "</s>", "\u01c5", "\u20ac", "\u2581",
    ]  # fmt: skip
    for _ in range(50):
        yield "".join(chance.choices(alphabet, k=chance.randint(1, 24)))


def main():
    all_texts = list(texts())
    variants = {}
    chance = random.Random(4)
    for name, variant in [*byte_level_variants(), *pieces_variants()]:
        file = patched(variant)
        tokenizer = Tokenizer.from_str(json.dumps(file))
        variant["ids"] = [tokenizer.encode(text, add_special_tokens=False).ids for text in all_texts]
        known = [i for i in range(640) if tokenizer.id_to_token(i) is not None]
        drawn = [[chance.choice(known) for _ in range(8)] for _ in range(8)]
        variant["decoded"] = [[ids, tokenizer.decode(ids, skip_special_tokens=False)] for ids in drawn]
        variants[name] = variant
    made = json.dumps({"texts": all_texts, "variants": variants}, separators=(",", ":"))
    (OUT / "variants.json").write_text(made.replace('},"', '},\n"') + "\n", encoding="utf-8")


main()
