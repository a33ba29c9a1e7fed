"""The format of the goldens here: <name>.bin has tensors one after the other, in fp32 and int32; <name>.json has where
each begins, and how far the same computation in fp32 is from it."""

import json

import torch


def relative_error(a, b):
    """The largest difference as a share of the largest number of `b`."""
    return ((a.double() - b.double()).abs().max() / b.double().abs().max()).item()


def write_golden(path, tensors, single=None, **header):
    """Writes path.bin and path.json, which begins with `header`; returns the index of the tensors by name. `single` has
    those of floating-point numbers, computed in fp32."""
    index, data, at = {}, b"", 0
    for key, value in tensors.items():
        integer = not value.is_floating_point()
        raw = value.to(torch.int32 if integer else torch.float32).contiguous().numpy().tobytes()
        index[key] = dict(shape=list(value.shape), dtype="int32" if integer else "fp32", offset=at)
        if single is not None and not integer:
            index[key]["fp32_error"] = relative_error(single[key], value)
        data += raw
        at += len(raw) // 4
    path.with_name(path.name + ".bin").write_bytes(data)
    path.with_name(path.name + ".json").write_text(json.dumps(dict(**header, tensors=index)) + "\n")
    return index
