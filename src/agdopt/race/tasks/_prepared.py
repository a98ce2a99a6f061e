"""Arrays of tokens made once, so that training needs no tokenizer; small enough to be carried along."""

import hashlib
import io
import zipfile
from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np


def save(path: Path, arrays: Mapping[str, np.ndarray]) -> None:
    """What np.load reads; LZMA leaves two thirds of np.savez_compressed's size."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w") as z:
        for name, array in arrays.items():
            data = io.BytesIO()
            np.save(data, array)
            z.writestr(zipfile.ZipInfo(f"{name}.npy"), data.getvalue(), zipfile.ZIP_LZMA)


def digest(arrays: Iterable[np.ndarray]) -> str:
    """SHA-256 of the tokens: what a plan can name to say which text it means."""
    sha = hashlib.sha256()
    for array in arrays:
        sha.update(np.ascontiguousarray(array, "<u2").tobytes())
    return sha.hexdigest()


def joined(lines: Iterable[str]) -> np.ndarray:
    return np.frombuffer("\n".join(lines).encode(), np.uint8)


def split(array: np.ndarray) -> list[str]:
    return bytes(array).decode().split("\n")
