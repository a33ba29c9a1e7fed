"""Makes tokenizers/word_pieces.json: tokenizers of BERT with a small vocabulary, and what the package `tokenizers` gives
for texts and for each character.

    python3 -m venv venv && venv/bin/pip install tokenizers==0.23.3
    venv/bin/python tests/model/make_word_pieces.py

"characters": runs [first code point, class] of what a character between two letters does: 0 it is removed, 1 it is a
space, 2 it is a word of its own, 3 it is a part of a word.
"""
import json
from pathlib import Path

from tokenizers import Tokenizer

OUT = Path(__file__).parent / "tokenizers"
WORDS = """the film was great not ##ing ##s ##ed act ##or a ##a b ##b ##c un ##want ##able don ' t . , ! ? - ( ) [ ] CLS
cafe naive strasse i ii ##i 中 文 国 Hello hello World world é ##é ö 1 2 ##0 ##00 ' ##' s m n't do 's ve re x ##x — … ß
가 ᄀ ##ᅡ Ⅳ ⅳ ı ##ı ##̇ i̇""".split()
TEXTS = [
    "", " ", "the film was great", "The actors acted.  Not great!", "unwantable unwanting unwantz", "don't (do) it's",
    "café naïve Straße CAFÉ", "中文国the中 film", "a\tb\nc\r\nd\u00a0a\u3000b", "a\u0000b a\ufffdb a\u200bb a\u00adb",
    "[CLS] the [SEP] film[MASK]s [PAD]x [UNK]", "x" * 100 + " " + "x" * 101, "é" * 100, "İi ı I\u0307", "가 각 Ⅳ",
    "a—b…a", "e\u0301\u0323a q\u0300", "aa ab abc abca 1000 2001", "$a+b=c~`^|<>", "\u2028a\u2029b\u0085a",
    "the NEWTOKEN film newtoken. newtokens aNewToken", "a CAFÉX b cafex c caféx", "the 中X film中x国", "LEFT the   Left b",
    "a right   the RIGHT", "[x] [X] [Y] [y] the", "new\ttok the new tok NEW\u00a0TOK", "a##Bnewtoken##b [MASK]Newtoken[SEP]",
    "the  Both  film both", "Hello, World! I'm here. They've n't do not we're ' s", "  the   film  ", "ａｂ ｃ", "ﬁlm ﬀ", "a\u0301", "\u0301a",
]


def tokenizer(lowercase=True, strip_accents=None, clean=True, chinese=True, processor="template", cleanup=True, most=100,
              added=()):
    vocab = {token: i for i, token in enumerate(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *dict.fromkeys(WORDS)])}
    special = {name: {"id": name, "ids": [vocab[name]], "tokens": [name]} for name in ("[CLS]", "[SEP]")}

    def piece(name):
        return {"SpecialToken": {"id": name, "type_id": 0}}

    def text(name, type_id):
        return {"Sequence": {"id": name, "type_id": type_id}}

    template = {"type": "TemplateProcessing", "special_tokens": special,
                "single": [piece("[CLS]"), text("A", 0), piece("[SEP]")],
                "pair": [piece("[CLS]"), text("A", 0), piece("[SEP]"), text("B", 1), piece("[SEP]")]}
    bert = {"type": "BertProcessing", "sep": ["[SEP]", vocab["[SEP]"]], "cls": ["[CLS]", vocab["[CLS]"]]}
    return {"version": "1.0", "truncation": None, "padding": None,
            "added_tokens": [{"id": vocab[name], "content": name, "single_word": False, "lstrip": False, "rstrip": False,
                              "normalized": False, "special": True}
                             for name in ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")] + [
                                 {"id": len(vocab) + i, "content": name, "single_word": False, "lstrip": "left" in more,
                                  "rstrip": "right" in more, "normalized": "raw" not in more, "special": "special" in more}
                                 for i, (name, more) in enumerate(added)],
            "normalizer": {"type": "BertNormalizer", "clean_text": clean, "handle_chinese_chars": chinese,
                           "strip_accents": strip_accents, "lowercase": lowercase},
            "pre_tokenizer": {"type": "BertPreTokenizer"},
            "post_processor": template if processor == "template" else bert,
            "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": cleanup},
            "model": {"type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##",
                      "max_input_chars_per_word": most, "vocab": vocab}}


# Tokens as add_tokens() makes them, which are normalised before they are sought, and others.
ADDED = [("NewToken", ""), ("Caféx", ""), ("中x", ""), ("Left", "left"), ("Right", "right"), ("[X]", ""),
         ("[Y]", "raw special"), ("[y]", ""), ("new\ttok", ""), ("##B", ""), ("Both", "left right")]
CASES = {
    "uncased": {}, "cased": {"lowercase": False}, "accents": {"strip_accents": False},
    "cased_without_accents": {"lowercase": False, "strip_accents": True}, "raw": {"clean": False, "chinese": False},
    "added": {"added": ADDED}, "added_cased": {"added": ADDED, "lowercase": False},
    "added_accents": {"added": ADDED, "strip_accents": False}, "added_raw": {"added": ADDED, "clean": False, "chinese": False},
    "bert_processing": {"processor": "bert", "cleanup": False}, "short_words": {"most": 3},
}


def classes():
    made = tokenizer(lowercase=False)
    vocab = made["model"]["vocab"]
    package = Tokenizer.from_str(json.dumps(made))
    a, more, unknown = vocab["a"], vocab["##a"], vocab["[UNK]"]
    known = {(a, more): 0, (a, a): 1, (a, unknown, a): 2, (unknown,): 3}
    runs = []
    for code in range(1, 0x110000):
        if 0xD800 <= code < 0xE000:
            continue
        ids = package.encode("a" + chr(code) + "a", add_special_tokens=False).ids
        # Characters of the vocabulary are looked at by the texts.
        kind = known.get(tuple(ids), -1)
        if not runs or runs[-1][1] != kind:
            runs.append([code, kind])
    return runs


def main():
    cases = {}
    for name, options in CASES.items():
        made = tokenizer(**options)
        package = Tokenizer.from_str(json.dumps(made))
        ids = [package.encode(text).ids for text in TEXTS]
        cases[name] = {"tokenizer": made, "ids": ids,
                       "decoded": [package.decode(each, skip_special_tokens=True) for each in ids]}
    made = {"texts": TEXTS, "cases": cases, "characters": classes()}
    (OUT / "word_pieces.json").write_text(json.dumps(made, ensure_ascii=True) + "\n")
    print(len(made["characters"]), "runs")


if __name__ == "__main__":
    main()
