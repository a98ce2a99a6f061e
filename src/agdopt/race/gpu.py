"""make gpu: what only a real GPU can show. Records go to results/gpu.jsonl and results/speed.jsonl."""

import argparse
import os
import shutil
import subprocess
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from agdopt import AGD
from agdopt.race import speed
from agdopt.race.gpu_checks import DEVICE, bodies, graphs, many_graphs, scaler, sharded, switch
from agdopt.race.record import add_line


def guards() -> str:
    """Bytes around parameters, gradients and averages stay as they were, at every alignment."""
    checked = 0
    for dtype, states in (
        (torch.float32, None),
        (torch.float32, torch.bfloat16),
        (torch.bfloat16, torch.bfloat16),
    ):
        for size in (1, 7, 1023, 1024, 1025, 4096 + 3):
            for offset in (0, 1, 3):
                buffers: list[torch.Tensor] = []

                def placed(
                    kind: torch.dtype, size: int = size, offset: int = offset, to: Any = buffers
                ) -> Any:
                    whole = torch.full((size + 64,), 777.0, device=DEVICE, dtype=kind)
                    to.append(whole)
                    return whole[32 + offset : 32 + offset + size]

                p = nn.Parameter(placed(dtype))
                p.data.normal_()
                p.grad = placed(dtype).normal_()
                optimizer = AGD([p], lr=0.1, state_dtype=states)
                optimizer.step()
                for key in ("exp_avg", "exp_avg_sq"):
                    optimizer.state[p][key] = placed(states or torch.float32).copy_(optimizer.state[p][key])
                optimizer.step()
                for whole in buffers:
                    outside = torch.cat([whole[: 32 + offset], whole[32 + offset + size :]])
                    assert bool((outside == outside[0]).all()), (dtype, states, size, offset)
                    checked += 1
    return f"{checked} buffers"


def memcheck() -> str:
    """compute-sanitizer over one pass of `guards`."""
    tool = shutil.which("compute-sanitizer") or "/usr/local/cuda/bin/compute-sanitizer"
    if not Path(tool).exists():
        return "not run: compute-sanitizer is not installed"
    command = [
        tool,
        "--tool",
        "memcheck",
        "--error-exitcode",
        "9",
        sys.executable,
        "-m",
        __spec__.name,
        "--pass",
    ]
    done = subprocess.run(
        command, capture_output=True, text=True, env={**os.environ, "PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return done.stdout.strip().splitlines()[-1].strip("= ")


CHECKS: tuple[Callable[[], str], ...] = (
    bodies,
    graphs,
    many_graphs,
    switch,
    scaler,
    sharded,
    guards,
    memcheck,
)


def main() -> int:
    parser = argparse.ArgumentParser(prog="make gpu", description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("results"))
    parser.add_argument("--seconds", type=float, default=4.0, help="of timing for each work")
    parser.add_argument(
        "--pass", dest="once", action="store_true", help="only the pass that memcheck watches"
    )
    args = parser.parse_args()
    if not torch.cuda.is_available():
        print(
            "make gpu needs a GPU that torch sees; `make test` checks the kernels without one",
            file=sys.stderr,
        )
        return 2
    if args.once:
        guards()
        return 0
    record: dict[str, Any] = {"kind": "gpu", "schema": 1, **speed.environment(DEVICE), "checks": {}}
    failed = False
    for check in CHECKS:
        try:
            told, ok = check(), True
        except Exception as e:
            told, ok = f"{type(e).__name__}: {e}"[:2000], False
            traceback.print_exc()
        failed |= not ok
        record["checks"][check.__name__] = {"ok": ok, "told": told}
        print(f"{'ok  ' if ok else 'FAIL'} {check.__name__}: {told}", flush=True)
    add_line(args.out / "gpu.jsonl", record)
    if failed:
        return 1
    from agdopt.race.cli import main as cli

    return cli(
        ["speed", "--device", DEVICE, "--seconds", str(args.seconds), "--out", str(args.out / "speed.jsonl")]
    )


if __name__ == "__main__":
    sys.exit(main())
