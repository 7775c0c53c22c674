"""Named arrays as the content of a safetensors file, without a copy of them, and back."""

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedmom.core.errors import FedMomError

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

    Raises:
        FedMomError: An array is of a type that such files do not have.

    Examples:
        >>> unpacked(b"".join(packed({"w": np.arange(3)})))
        {'w': array([0, 1, 2])}
    """
    for name, tensor in tensors.items():
        if tensor.dtype.name not in NAMES:
            raise FedMomError(
                f"{name} is of type {tensor.dtype}, which cannot be written to a file. Use one of:"
                f" {', '.join(NAMES)}."
            )
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


def unpacked(content: bytes) -> dict[str, NDArray[Any]]:
    """Return the arrays of a file, by name, bfloat16 included, which the library leaves to others.

    Args:
        content: The file's content.

    Raises:
        ValueError: It is not that of a safetensors file.
    """
    import ml_dtypes  # noqa: F401  # its types get names in NumPy
    from safetensors import SafetensorError, deserialize

    types = {short: np.dtype(name) for name, short in NAMES.items()}
    try:
        return {
            name: np.frombuffer(about["data"], types[about["dtype"]]).reshape(about["shape"])
            for name, about in deserialize(content)  # type: ignore[no-untyped-call]
        }
    except (SafetensorError, OverflowError, TypeError) as error:
        raise ValueError(str(error)) from None
    except KeyError as error:
        raise ValueError(f"it has arrays of type {error}, which NumPy does not have") from None
