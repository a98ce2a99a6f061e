"""What the documentation shows runs, and what is generated is fresh."""

import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = sorted([ROOT / "README.md", *ROOT.glob("docs/*.md")])
BLOCKS = [
    pytest.param(block, id=f"{page.name}-{i}")
    for page in PAGES
    for i, block in enumerate(
        re.findall(r"^```python\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE)
    )
]


@pytest.mark.parametrize("block", BLOCKS)
def test_python_blocks_run(block):
    exec(compile(block, "block", "exec"), {"__name__": "__main__"})


def test_readme_has_a_block():
    assert any(param.id.startswith("README.md") for param in BLOCKS)


# Those of the race are tasks: tests/race runs them.
EXAMPLES = sorted(path for path in ROOT.glob("examples/*.py") if not path.stem.startswith("race_"))


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_examples_train(example):
    main = runpy.run_path(str(example))["main"]
    assert main() < 0.5  # each starts above 1


def test_generated_blocks_are_fresh():
    done = subprocess.run(
        [sys.executable, "-m", "agdopt.race.docs", "--check", "--root", str(ROOT)],
        capture_output=True,
        text=True,
        env={"PYTHONPATH": str(ROOT / "src")},
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
        assert target.startswith("http") or (page.parent / target).exists(), target
