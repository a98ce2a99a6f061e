"""Checkpoints on disk: one run's state, whole or not there, in pieces of a size that can travel."""

import io
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch

SUFFIX = ".ckpt"


def _write(path: Path, data: bytes) -> None:
    partial = path.with_name(path.name + ".partial")
    with open(partial, "wb") as f:
        f.write(data)
        f.flush()
        os.fsync(f.fileno())
    os.replace(partial, path)


def save(folder: Path, name: str, epoch: int, state: dict[str, Any], piece: int) -> int:
    """Writes NAME-EPOCH-1of2.ckpt, ...; older epochs go only when the new one is whole. Returns the bytes."""
    folder.mkdir(parents=True, exist_ok=True)
    buffer = io.BytesIO()
    torch.save(state, buffer)
    data = buffer.getvalue()
    starts = range(0, len(data), piece)
    for i, start in enumerate(starts, 1):
        _write(folder / f"{name}-{epoch:05d}-{i}of{len(starts)}{SUFFIX}", data[start : start + piece])
    remove(folder, name, keep=epoch)
    return len(data)


def _found(folder: Path, name: str) -> dict[int, list[Path]]:
    """The epochs whose pieces are all there."""
    epochs: dict[int, list[Path]] = {}
    for path in folder.glob(f"{name}-*{SUFFIX}"):
        epochs.setdefault(int(path.stem.rsplit("-", 2)[1]), []).append(path)
    pieces = {
        e: sorted(p, key=lambda q: int(q.stem.rsplit("-", 1)[1].split("of")[0])) for e, p in epochs.items()
    }
    return {e: p for e, p in pieces.items() if len(p) == int(p[0].stem.rsplit("of", 1)[1])}


def epoch_of(folders: Iterable[Path], name: str) -> int:
    """How far the furthest checkpoint of a run is; 0: there is none."""
    return max((e for folder in folders for e in _found(folder, name)), default=0)


def load(folders: Iterable[Path], name: str) -> dict[str, Any] | None:
    """The furthest checkpoint of a run, on the CPU: step counters may belong there, the rest is moved."""
    found = [(e, p) for folder in folders for e, p in _found(folder, name).items()]
    if not found:
        return None
    _, pieces = max(found, key=lambda item: item[0])
    data = io.BytesIO(b"".join(p.read_bytes() for p in pieces))
    state: dict[str, Any] = torch.load(data, map_location="cpu", weights_only=True)
    return state


def remove(folder: Path, name: str, keep: int | None = None) -> None:
    for path in folder.glob(f"{name}-*"):
        if keep is None or int(path.name.split(SUFFIX)[0].rsplit("-", 2)[1]) != keep:
            path.unlink()
