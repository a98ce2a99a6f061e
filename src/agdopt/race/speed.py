"""agdopt speed: whole optimizer steps, timed side by side on this machine."""

import contextlib
import hashlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.resources import files
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import agdopt
from agdopt.race import timed
from agdopt.race.checks import ParityError
from agdopt.race.parity import gate

STEP = (
    *("core/hyper", "core/rule", "torch/optimizer", "torch/gather", "torch/executor", "torch/bucket"),
    *("torch/rounding", "torch/foreach", "torch/cpu", "torch/cpu_kernel", "torch/gpu", "torch/gpu_kernel"),
)
WARM_UP = 3
# Steps of one optimizer before the next one's turn, as in a training loop; but one of a large model, whose
# tensors a real training drives out of every cache between two steps.
VISIT, LARGE = 10, 4_000_000


@dataclass
class Subject:
    name: str
    params: list[torch.nn.Parameter]
    gradients: list[list[Tensor]]  # two sets: addresses change every step, as in training
    step: Callable[[], Any]
    times: list[float]


def measure(work: str, device: str, seconds: float, everything: bool) -> dict[str, Any]:
    """Interleaved rounds over all candidates until `seconds` are over; medians with their p20 and p80."""
    shapes = timed.works(device)[work]
    subjects = []
    sets: dict[torch.dtype, list[list[Tensor]]] = {}
    for candidate in timed.candidates(everything):
        dtype = candidate.dtype
        params = [torch.nn.Parameter(torch.randn(s, device=device, dtype=dtype) * 0.02) for s in shapes]
        if dtype not in sets:
            sets[dtype] = [[torch.randn(s, device=device, dtype=dtype) for s in shapes] for _ in range(2)]
        optimizer = candidate.build(params)
        subjects.append(Subject(candidate.name, params, sets[dtype], optimizer.step, []))
    subjects.append(_copy(shapes, device))

    visit = VISIT if _elements(shapes) < LARGE else 1
    started, rounds = time.perf_counter(), 0
    while rounds < WARM_UP + 5 or (time.perf_counter() - started < seconds and rounds < WARM_UP + 200):
        turn = rounds % len(subjects)  # nobody always follows the same one through the caches
        for subject in subjects[turn:] + subjects[:turn]:
            spent = 0.0
            for i in range(visit):
                for p, g in zip(subject.params, subject.gradients[(rounds + i) % 2], strict=True):
                    p.grad = g
                _wait(device)
                before = time.perf_counter()
                subject.step()
                _wait(device)
                spent += time.perf_counter() - before
            subject.times.append(spent / visit)
        rounds += 1
    base = subjects[0].times[WARM_UP:]
    rows = []
    for subject in subjects:
        times = sorted(subject.times[WARM_UP:])
        # Round by round: a machine whose memory is faster for a while is so for both.
        ratio = statistics.median(t / b for t, b in zip(subject.times[WARM_UP:], base, strict=True))
        rows.append(
            {
                "name": subject.name,
                "ms": 1e3 * statistics.median(times),
                "p20": 1e3 * times[len(times) // 5],
                "p80": 1e3 * times[-1 - len(times) // 5],
                "ratio": ratio,
                "extra_bytes": extra_memory(subject.step, device) if subject.params else 0,
            }
        )
    return {
        "work": work,
        "tensors": len(shapes),
        "elements": _elements(shapes),
        "rounds": rounds,
        "rows": rows,
    }


def _copy(shapes: list[tuple[int, ...]], device: str) -> Subject:
    """A plain copy of the 28 bytes an element that an fp32 step must move: as fast as it could be."""
    n = _elements(shapes) * 7 // 2
    a, b = torch.zeros(n, device=device), torch.empty(n, device=device)
    return Subject("copy of the same bytes", [], [[], []], lambda: b.copy_(a), [])


def _elements(shapes: list[tuple[int, ...]]) -> int:
    return sum(torch.Size(s).numel() for s in shapes)


def _wait(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def extra_memory(step: Callable[[], Any], device: str) -> int:
    """The most bytes that a step holds beyond what was held before it."""
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        step()
        return torch.cuda.max_memory_allocated() - before
    with _silent(), torch.profiler.profile(profile_memory=True, acc_events=True) as profile:
        step()
    with tempfile.TemporaryDirectory() as folder:
        profile.export_chrome_trace(f"{folder}/trace.json")
        events = json.loads(Path(f"{folder}/trace.json").read_text())["traceEvents"]
    sizes = [
        (e["ts"], e["args"].get("Ev Idx", 0), e["args"]["Bytes"]) for e in events if e["name"] == "[memory]"
    ]
    held = peak = 0
    for *_, size in sorted(sizes):
        held += size
        peak = max(peak, held)
    return peak


@contextlib.contextmanager
def _silent() -> Iterator[None]:
    """Torch's profiler traces itself on standard error, past Python."""
    kept = os.dup(2)
    try:
        with open(os.devnull, "w") as nowhere:
            os.dup2(nowhere.fileno(), 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


FIRST = """
import time, torch
from agdopt import AGD
p = torch.nn.Parameter(torch.randn(1000, device="{device}")); p.grad = torch.randn_like(p)
o = AGD([p]); start = time.perf_counter(); o.step(); {wait}
print(time.perf_counter() - start)
"""


def first_step(device: str) -> dict[str, float]:
    """Seconds of the first step of a fresh process, with nothing compiled and with everything on disk."""
    code = FIRST.format(device=device, wait="torch.cuda.synchronize()" if device == "cuda" else "")
    with tempfile.TemporaryDirectory() as folder:
        env = {**os.environ, "NUMBA_CACHE_DIR": folder, "TRITON_CACHE_DIR": folder}

        def run() -> float:
            out = subprocess.run(
                [sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True
            )
            return float(out.stdout)

        return {"cold": run(), "cached": run()}


def fingerprint() -> str:
    """A hash of the files that a step goes through; a record with another one is of another version."""
    rooms = files("agdopt")
    digest = hashlib.sha256()
    for name in STEP:
        digest.update(rooms.joinpath(f"{name}.py").read_bytes())
    return digest.hexdigest()[:12]


def environment(device: str) -> dict[str, Any]:
    name = torch.cuda.get_device_name() if device == "cuda" else _cpu()
    return {
        "device": name,
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "python": sys.version.split()[0],
        "agdopt": agdopt.__version__,
        "fingerprint": fingerprint(),
        "when": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def _cpu() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "CPU")


def speed(device: str, only: list[str], seconds: float, everything: bool) -> Iterator[dict[str, Any]]:
    """Records, one a work; none, but an error, when the parity gate is red."""
    found = gate(device)
    if found.failures:
        raise ParityError("no figures: parity fails on this machine:\n" + "\n".join(found.failures))
    head = {"kind": "speed", "schema": 1, **environment(device), "parity": found.worst}
    head["first_step"] = first_step(device)
    for work in only:
        yield {**head, **measure(work, device, seconds, everything)}
