"""What Triton makes of the kernels for a GPU, compiled without one."""

import os
import subprocess
import sys

import pytest

pytest.importorskip("triton")

COMPILE = """
import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from agdopt.torch.gpu_kernel import update

types = dict(float32=tl.float32, bfloat16=tl.bfloat16, float16=tl.float16)
floats = "k_g k_m w1 w2 keep inverse_floor scale clip gain l2 lr shrink".split()
signature = dict(table="*i64", grads="*i64", salts="*i32", owner="*i32", rows="*fp32", t="i32")
signature |= {name: "fp32" for name in floats}
constants = dict(P=types[%r], S=types[%r], PREPARED=%r, ROUND=False, BLOCK=1024)
source = ASTSource(update, signature | {name: "constexpr" for name in constants}, constants)
print(triton.compile(source, target=GPUTarget("cuda", %d, 32)).asm["ptx"])
"""


@pytest.mark.parametrize("prepared", [False, True])
@pytest.mark.parametrize(("p", "s"), [("float32", "float32"), ("bfloat16", "bfloat16")])
@pytest.mark.parametrize("capability", [80, 90])
def test_full_chunks_are_read_and_written_wide(p, s, prepared, capability, tmp_path):
    """16 bytes a thread at a time, which is most of the bandwidth; and single elements where masks are."""
    env = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, "-c", COMPILE % (p, s, prepared, capability)],
        env={**env, "TRITON_CACHE_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    code = done.stdout
    threads, size = 128, {"float32": 4, "bfloat16": 2}
    each = 1024 // threads * size[p] // 16  # wide accesses a thread needs for a tensor
    assert code.count("ld.global.v4") == 4 * each
    assert code.count("st.global.v4") == 3 * each
    assert code.count("ld.global.b") >= 4 * 1024 // threads
