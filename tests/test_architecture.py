"""Who may import whom, what an import costs, and what a wheel holds."""

import json
import shutil
import statistics
import subprocess
import sys
import zipfile
from pathlib import Path

import grimp
import pytest

ROOT = Path(__file__).parents[1]
SRC = ROOT / "src"
FRAMEWORKS = {"numpy", "torch", "jax", "optax", "tensorflow", "keras", "numba", "triton"}
FRAMEWORKS |= {"transformers", "lightning", "tensorboard"}

# What runs in the fresh process. sys.path comes first, so that a wheel or a copy can stand in for src.
PROBE = """
import sys, time
sys.path.insert(0, {path!r})
start = time.perf_counter()
{statement}
seconds = time.perf_counter() - start
import json
print(json.dumps([seconds, sorted(sys.modules)]))
"""


def fresh(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def probe(statement: str, path: Path = SRC) -> tuple[float, set[str]]:
    """Seconds that the statement took in a process of its own, and the modules it left."""
    seconds, modules = json.loads(fresh(PROBE.format(path=str(path), statement=statement)))
    return seconds, set(modules)


def lint_imports(folder: Path) -> subprocess.CompletedProcess[str]:
    command = [
        Path(sys.executable).with_name("lint-imports"),
        "--no-cache",
        "--config",
        ROOT / "pyproject.toml",
    ]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


def test_import_contracts():
    done = lint_imports(SRC)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("module", "offence", "contract"),
    [
        ("core/rule.py", "import triton", "core knows no framework"),
        ("core/rule.py", "import agdopt.race", "nothing imports race"),
        ("__init__.py", "import agdopt.race", "nothing imports race"),
        ("core/rule.py", "import agdopt.torch", "no room knows another"),
        ("torch/loop.py", "import agdopt.torch.foreach", "inside torch"),
        ("torch/bucket.py", "import agdopt.torch.loop", "inside torch"),
        ("torch/executor.py", "import agdopt.torch.optimizer", "inside torch"),
        ("torch/optimizer.py", "import agdopt.torch.convert", "inside torch"),
        ("race/__init__.py", "import agdopt.torch.executor", "public names"),
        ("jax.py", "import agdopt.torch", "no room knows another"),
        ("torch/switch.py", "import agdopt.integrations", "no room knows another"),
        ("integrations/lightning.py", "import agdopt.torch.counting", "public names"),
        ("torch/optimizer.py", "import agdopt.torch.switch", "inside torch"),
        ("a_new_room.py", "", "no room knows another"),
    ],
)
def test_contracts_see_an_offence(tmp_path, module, offence, contract):
    shutil.copytree(SRC, tmp_path / "src", ignore=shutil.ignore_patterns("__pycache__"))
    with (tmp_path / "src/agdopt" / module).open("a") as file:
        file.write(f"\n{offence}\n")
    broken = [line for line in lint_imports(tmp_path / "src").stdout.splitlines() if "BROKEN" in line]
    assert any(contract in line for line in broken), broken


def test_core_imports_the_standard_library_only():
    # import-linter can only forbid names it is given; this holds for every package there is.
    graph = grimp.build_graph("agdopt", include_external_packages=True, cache_dir=None)
    for module in {"agdopt.core"} | graph.find_descendants("agdopt.core"):
        allowed = sys.stdlib_module_names | {"agdopt"}
        if module == "agdopt.core.reference":
            allowed |= {"numpy"}
        imported = {name.partition(".")[0] for name in graph.find_modules_directly_imported_by(module)}
        assert imported <= allowed, module


FREE = ["import agdopt", "import agdopt; agdopt.__version__; dir(agdopt)", "import agdopt.integrations"]


@pytest.mark.parametrize("statement", FREE)
def test_importing_agdopt_is_free(statement):
    runs = [probe(statement) for _ in range(5)]
    for _, modules in runs:
        assert "agdopt" in modules
        assert not modules & FRAMEWORKS
        assert {name for name in modules if name.startswith("agdopt.")} <= {"agdopt.integrations"}
    assert statistics.median(seconds for seconds, _ in runs) < 0.05


def test_the_probe_probes():
    seconds, modules = probe("import agdopt; agdopt.AGD")
    assert {"agdopt.torch", "torch", "numpy"} <= modules
    assert seconds > 0.05


def test_importing_core_brings_no_framework():
    _, modules = probe("import agdopt.core")
    assert "agdopt.core" in modules
    assert not modules & FRAMEWORKS


def test_importing_the_torch_room_brings_neither_kernels_nor_race():
    _, modules = probe("import agdopt.torch")
    assert "torch" in modules
    assert not modules & (FRAMEWORKS - {"torch", "numpy"})
    assert not any(name.startswith("agdopt.race") for name in modules)


WITHOUT_TORCH = f"""
import sys
sys.path.insert(0, {str(SRC)!r})

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "torch":
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Absent())
import agdopt
try:
    STATEMENT
except ImportError as error:
    print(error)
"""


@pytest.mark.parametrize("name", ["AGD", "AGDW", "switch_report"])
@pytest.mark.parametrize("statement", ["agdopt.NAME", "from agdopt import NAME"])
def test_without_torch_one_sentence_says_what_to_install(statement, name):
    words = fresh(WITHOUT_TORCH.replace("STATEMENT", statement.replace("NAME", name))).strip()
    assert words == f'agdopt.{name} needs PyTorch: pip install "agdopt[torch]"'


def test_unknown_name_is_an_attribute_error():
    import agdopt

    with pytest.raises(AttributeError, match="module 'agdopt' has no attribute 'agd'"):
        _ = agdopt.agd
    assert set(agdopt.__all__) <= set(dir(agdopt))


def test_wheel_holds_everything_and_runs_unpacked(tmp_path):
    pytest.importorskip("build", reason="the package `build` is not installed")
    pytest.importorskip("hatchling", reason="the build backend is not installed")
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", tmp_path, ROOT]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr

    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "bare")
        packed = {name for name in archive.namelist() if name.startswith("agdopt/")}
    files = {
        path.relative_to(SRC).as_posix()
        for path in (SRC / "agdopt").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert packed == files
    assert "agdopt/py.typed" in packed

    # -I -S: no site-packages, so nothing of the checkout and no dependency can help.
    code = (
        f"import sys; sys.path.insert(0, {str(tmp_path / 'bare')!r})\n"
        "import agdopt, agdopt.core, importlib.metadata as metadata\n"
        "print(agdopt.__file__, agdopt.__version__ == metadata.version('agdopt'))"
    )
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, check=False
    )
    assert done.stdout.split() == [str(tmp_path / "bare/agdopt/__init__.py"), "True"], done.stderr
