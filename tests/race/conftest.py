"""The folder of real data sets, with packed ones unpacked."""

import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def data(tmp_path_factory):
    folder = Path(os.environ.get("AGDOPT_DATA", "data"))
    unpack = folder / "unpack_cifar10.py"
    if not unpack.exists() or (folder / "cifar-10-batches-py").exists():
        return folder
    both = tmp_path_factory.mktemp("data")
    for path in folder.iterdir():
        (both / path.name).symlink_to(path.resolve())
    # Some keep CIFAR-10 packed, beside a script that writes the usual layout.
    subprocess.run([sys.executable, unpack, both], check=True, capture_output=True)
    return both
