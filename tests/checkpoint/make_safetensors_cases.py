#!/usr/bin/env python3
"""Writes safetensors_cases.json beside this file: small files, good and bad, and whether Hugging Face's reader takes
them.

Run by hand: pip install safetensors numpy; python3 make_safetensors_cases.py
"reference" is "accepts" or "rejects"; "bytes" is the file in base64.
"""

import base64
import json
import pathlib
import struct

import numpy
import safetensors
import safetensors.numpy

CASES = {}


def file(name, header, data=b"", length=None):
    """A file of this header text and data."""
    header = header if isinstance(header, bytes) else header.encode()
    CASES[name] = struct.pack("<Q", len(header) if length is None else length) + header + data


def tensor(dtype="U8", shape="[4]", offsets="[0,4]", more=""):
    return f'{{"dtype":"{dtype}","shape":{shape},"data_offsets":{offsets}{more}}}'


U8 = tensor()
ONE = '{"a":' + U8 + "}"
FOUR = b"\1\2\3\4"

# Good files.
file("empty", "{}      ")
file("one tensor", ONE, FOUR)
file("not padded", '{"abc":' + U8 + "}", FOUR)
file("whitespace around", " \t\r\n" + ONE + " \t\r\n", FOUR)
file("whitespace between", ONE.replace(":", " :\n "), FOUR)
file("rank 0", '{"a":' + tensor("F32", "[]") + "}", FOUR)
file("rank 5", '{"a":' + tensor("U8", "[1,1,2,1,2]") + "}", FOUR)
file("no bytes", '{"a":' + tensor("F32", "[0]", "[0,0]") + "}")
file("no bytes at every boundary",
     '{"b":' + tensor("F32", "[0]", "[0,0]") + ',"a":' + U8 + ',"c":' + tensor("F32", "[2,0]", "[4,4]") + ',"d":' +
     tensor("U8", "[1]", "[4,5]") + ',"e":' + tensor("I64", "[0]", "[5,5]") + "}", FOUR + b"\5")
file("names against offsets", '{"a":' + tensor("U8", "[4]", "[4,8]") + ',"b":' + U8 + "}", 2 * FOUR)
file("not aligned", '{"a":' + tensor("U8", "[1]", "[0,1]") + ',"b":' + tensor("F32", "[1]", "[1,5]") + "}", b"\1" + FOUR)
file("metadata", '{"__metadata__":{"format":"pt","":"x"},"a":' + U8 + "}", FOUR)
file("metadata behind", '{"a":' + U8 + ',"__metadata__":{}}', FOUR)
file("fields in another order", '{"a":{"data_offsets":[0,4],"shape":[4],"dtype":"U8"}}', FOUR)
file("unicode", '{"\u00e4\u65e5\\ud83d\\ude00":' + U8 + "}", FOUR)
file("slashes", '{"../../etc/passwd":' + U8 + "}", FOUR)
file("BOOL that is neither", '{"a":' + tensor("BOOL") + "}", FOUR)
file("NaN", '{"a":' + tensor("F32", "[1]") + "}", b"\xff\xff\xff\xff")
for dtype, bits in dict(BOOL=8, F4=4, F6_E2M3=6, F6_E3M2=6, U8=8, I8=8, F8_E5M2=8, F8_E4M3=8, F8_E8M0=8, F8_E4M3FNUZ=8,
                        F8_E5M2FNUZ=8, I16=16, U16=16, F16=16, BF16=16, I32=32, U32=32, F32=32, C64=64, F64=64, I64=64,
                        U64=64).items():
    file("dtype " + dtype, '{"a":' + tensor(dtype, "[4]", f"[0,{bits // 2}]") + "}", bytes(bits // 2))

# Length of the header.
file("no bytes at all", "")
CASES["no bytes at all"] = b""
CASES["seven bytes"] = b"\2\0\0\0\0\0\0"
file("header of 0 bytes", "", FOUR)
file("header past the end", ONE, b"", len(ONE) + 1)
file("header of 2^63 bytes", ONE, FOUR, 2**63)
file("header of 2^64-1 bytes", ONE, FOUR, 2**64 - 1)
file("header over 100 MB", ONE, FOUR, 100_000_001)

# Offsets and sizes.
file("trailing byte", ONE, FOUR + b"\5")
file("missing byte", ONE, FOUR[:3])
file("hole", '{"a":' + U8 + ',"b":' + tensor(offsets="[5,9]") + "}", FOUR + b"\0" + FOUR)
file("overlap", '{"a":' + U8 + ',"b":' + tensor(offsets="[3,7]") + "}", FOUR + FOUR[:3])
file("two names on one range", '{"a":' + U8 + ',"b":' + U8 + "}", FOUR)
file("gap before the first", '{"a":' + tensor(offsets="[1,5]") + "}", b"\0" + FOUR)
file("begin above end", '{"a":' + tensor(offsets="[4,0]") + "}", FOUR)
file("size too small", '{"a":' + tensor(shape="[3]") + "}", FOUR)
file("size too large", '{"a":' + tensor("F32", "[2]") + "}", FOUR)
file("no bytes in the middle of a tensor", '{"a":' + U8 + ',"b":' + tensor("U8", "[0]", "[2,2]") + "}", FOUR)
file("overflow before 0", '{"a":' + tensor("U8", "[9223372036854775808,2,0]", "[0,0]") + "}")
file("overflow behind 0", '{"a":' + tensor("U8", "[0,9223372036854775808,2]", "[0,0]") + "}")
file("overflow of sizes that fit", '{"a":' + tensor("U8", "[0,4294967296,4294967296]", "[0,0]") + "}")
file("overflow to the right size", '{"a":' + tensor("U8", "[4611686018427387905,4]") + "}", FOUR)
file("overflow of bits", '{"a":' + tensor("F64", "[288230376151711744]", "[0,0]") + "}")
file("half a byte", '{"a":' + tensor("F4", "[3]", "[0,1]") + "}", b"\1")

# Numbers.
for name, number in {"negative": "-4", "minus zero": "-0", "float": "4.0", "exponent": "4e0", "leading zero": "04",
                     "2^64": "18446744073709551616", "true": "true", "null": "null", "text": '"4"', "nested": "[4]",
                     "object": "{}", "plus": "+4", "NaN": "NaN"}.items():
    file("number in shape: " + name, '{"a":' + tensor(shape=f"[{number}]") + "}", FOUR)
    file("number in offsets: " + name, '{"a":' + tensor(offsets=f"[0,{number}]") + "}", FOUR)
for offsets in ("[]", "[4]", "[0,4,4]", "4", '{"begin":0,"end":4}', "null"):
    file("offsets " + offsets, '{"a":' + tensor(offsets=offsets) + "}", FOUR)
for shape in ("4", '"4"', "null", "{}"):
    file("shape " + shape, '{"a":' + tensor(shape=shape) + "}", FOUR)
for dtype in ("u8", "FLOAT32", "", "F4_E2M1", "U8 ", "I128"):
    file("dtype '" + dtype + "'", '{"a":' + tensor(dtype) + "}", FOUR)
file("dtype null", '{"a":{"dtype":null,"shape":[4],"data_offsets":[0,4]}}', FOUR)
file("dtype 4", '{"a":{"dtype":4,"shape":[4],"data_offsets":[0,4]}}', FOUR)

# Keys.
file("no dtype", '{"a":{"shape":[4],"data_offsets":[0,4]}}', FOUR)
file("no shape", '{"a":{"dtype":"U8","data_offsets":[0,4]}}', FOUR)
file("no offsets", '{"a":{"dtype":"U8","shape":[4]}}', FOUR)
file("no offsets and no bytes", '{"a":{"dtype":"U8","shape":[0]}}')
file("nothing", '{"a":{}}')
file("dtype twice", '{"a":' + tensor(more=',"dtype":"U8"') + "}", FOUR)
file("shape twice", '{"a":' + tensor(more=',"shape":[4]') + "}", FOUR)
file("offsets twice", '{"a":' + tensor(more=',"data_offsets":[0,4]') + "}", FOUR)
file("metadata twice", '{"__metadata__":{},"__metadata__":{},"a":' + U8 + "}", FOUR)
file("unknown key", '{"a":' + tensor(more=',"stride":[1]') + "}", FOUR)
file("object as a list", '{"a":["U8",[4],[0,4]]}', FOUR)
file("name twice", '{"a":' + U8 + ',"a":' + tensor("F32", "[1]") + "}", FOUR)
file("name twice by an escape", '{"a":' + U8 + ',"\\u0061":' + tensor("F32", "[1]") + "}", FOUR)
file("name twice, other offsets", '{"a":' + U8 + ',"a":' + tensor(offsets="[4,8]") + "}", 2 * FOUR)
file("metadata key twice", '{"__metadata__":{"k":"1","k":"2"},"a":' + U8 + "}", FOUR)
file("metadata key twice by an escape", '{"__metadata__":{"k":"1","\\u006b":"2"},"a":' + U8 + "}", FOUR)
file("metadata null", '{"__metadata__":null,"a":' + U8 + "}", FOUR)
for value in ("1", "null", "true", "[]", "{}"):
    file("metadata value " + value, '{"__metadata__":{"k":' + value + '},"a":' + U8 + "}", FOUR)
for value in ("1", '"x"', "[]", "true"):
    file("metadata " + value, '{"__metadata__":' + value + ',"a":' + U8 + "}", FOUR)
file("metadata that is a tensor", '{"__metadata__":' + U8 + "}", FOUR)
for value in ("1", '"x"', "null", "false"):
    file("tensor " + value, '{"a":' + value + "}", FOUR)
file("empty name", '{"":' + U8 + "}", FOUR)
file("NUL in a name", '{"a\\u0000b":' + U8 + "}", FOUR)
file("long name", '{"' + 1025 * "n" + '":' + U8 + "}", FOUR)
file("rank 6", '{"a":' + tensor("U8", "[1,1,1,2,1,2]") + "}", FOUR)

# JSON.
for value in ("[]", "1", '"x"', "null", "true"):
    file("header " + value, value)
file("blank header", "        ")
file("two values", "{}{}")
file("garbage behind", ONE + "x", FOUR)
file("trailing comma", '{"a":' + U8 + ",}", FOUR)
file("trailing comma in a list", '{"a":' + tensor(shape="[4,]") + "}", FOUR)
file("comment", "/* c */" + ONE, FOUR)
file("comment to the end", ONE + "// c", FOUR)
file("single quotes", ONE.replace('"', "'"), FOUR)
file("cut in the middle", ONE[:-7], FOUR)
file("NUL padding", ONE + "\0\0", FOUR)
file("NUL and garbage", ONE + "\0garbage", FOUR)
file("NUL before", "\0" + ONE, FOUR)
file("byte order mark", b"\xef\xbb\xbf" + ONE.encode(), FOUR)
file("UTF-16", ONE.encode("utf-16"), FOUR)
file("UTF-16 without a mark", ONE.encode("utf-16-le"), FOUR)
file("invalid UTF-8", b'{"a\xff":' + U8.encode() + b"}", FOUR)
file("overlong UTF-8", b'{"a\xc0\xaf":' + U8.encode() + b"}", FOUR)
file("surrogate in UTF-8", b'{"a\xed\xa0\x80":' + U8.encode() + b"}", FOUR)
file("lone surrogate", '{"a\\ud800":' + U8 + "}", FOUR)
file("lone low surrogate", '{"a\\udc00":' + U8 + "}", FOUR)
file("raw control character", '{"a\tb":' + U8 + "}", FOUR)
file("bad escape", '{"a\\x41":' + U8 + "}", FOUR)
file("nested lists", 2000 * "[" + 2000 * "]")
file("nested objects", 2000 * '{"a":' + "1" + 2000 * "}")
file("nested shape", '{"a":' + tensor(shape=200 * "[" + "4" + 200 * "]") + "}", FOUR)
file("nested metadata", '{"__metadata__":' + 200 * '{"a":' + '"b"' + 200 * "}" + "}")


def reference(content):
    try:
        safetensors.deserialize(content)
        return "accepts"
    except safetensors.SafetensorError:
        return "rejects"


# What its writer makes of three tensors.
WRITTEN = safetensors.numpy.save(
    {"b": numpy.arange(6, dtype=numpy.float32).reshape(2, 3), "a\u00e4\"\\": numpy.array(7, numpy.int64),
     "c": numpy.arange(3, dtype=numpy.uint8)}, {"format": "pt"})

lines = [json.dumps({"name": name, "reference": reference(content), "bytes": base64.b64encode(content).decode()})
         for name, content in CASES.items()]
text = ('{"safetensors": "%s",\n"written": "%s",\n"cases": [\n%s\n]}\n'
        % (safetensors.__version__, base64.b64encode(WRITTEN).decode(), ",\n".join(lines)))
pathlib.Path(__file__).with_name("safetensors_cases.json").write_text(text)
