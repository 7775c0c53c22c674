"""Named arrays as the content of a safetensors file, without a copy of them."""

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

NAMES = {
    **{f"float{bits}": f"F{bits}" for bits in (16, 32, 64)},
    **{f"int{bits}": f"I{bits}" for bits in (8, 16, 32, 64)},
    **{f"uint{bits}": f"U{bits}" for bits in (8, 16, 32, 64)},
    "bool": "BOOL",
    "bfloat16": "BF16",
    "complex64": "C64",
    "float8_e4m3fn": "F8_E4M3",
    "float8_e5m2": "F8_E5M2",
}
# The order in which the library writes arrays: by their kind, then by name.
ORDER = (
    *("U64", "I64", "F64", "C64", "F32", "U32", "I32", "BF16", "F16", "U16", "I16"),
    *("F8_E4M3", "F8_E5M2", "I8", "U8", "BOOL"),
)


def packed(tensors: Mapping[str, NDArray[Any]]) -> list[bytes | memoryview]:
    """Return the parts of a file: a header, and the arrays where they are.

    Args:
        tensors: The arrays, by name.

    Examples:
        >>> from safetensors.numpy import load
        >>> load(b"".join(packed({"w": np.arange(3)})))
        {'w': array([0, 1, 2])}
    """
    kinds = {name: NAMES[tensor.dtype.name] for name, tensor in tensors.items()}
    header, parts, end = {}, [], 0
    for name in sorted(tensors, key=lambda name: (ORDER.index(kinds[name]), name)):
        tensor = tensors[name]
        offsets = [end, end := end + tensor.nbytes]
        shape = list(tensor.shape)
        header[name] = {"dtype": kinds[name], "shape": shape, "data_offsets": offsets}
        parts.append(np.ascontiguousarray(tensor).reshape(-1).view(np.uint8).data)
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    return [len(text).to_bytes(8, "little") + text, *parts]
