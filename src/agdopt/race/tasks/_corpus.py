"""The code corpus: Python sources of pinned wheels, as tokens of a BPE trained on the training packages."""

import argparse
import hashlib
import subprocess
import sys
import tempfile
import tomllib
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from agdopt.race.checks import PlanError
from agdopt.race.tasks._prepared import digest, joined, save
from agdopt.race.tasks.code import FILE, SPLITS

END = "<|end|>"  # after each file; it counts as no byte


def download(manifest: Mapping[str, Any], folder: Path) -> None:
    """By pip, which checks the pinned hashes."""
    lines = [
        f"{name}=={row['version']} --hash=sha256:{row['sha256']}"
        for split in SPLITS
        for name, row in manifest[split].items()
    ]
    wanted = folder / "requirements.txt"
    wanted.write_text("\n".join(lines))
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
    subprocess.run([*pip, "--require-hashes", "-r", str(wanted), "-d", str(folder)], check=True)


def sources(wheel: Path, largest: int) -> Iterator[str]:
    """Its Python files by name. Larger ones are tables more than programs."""
    with zipfile.ZipFile(wheel) as z:
        for name in sorted(z.namelist()):
            if name.endswith(".py") and 0 < z.getinfo(name).file_size <= largest:
                try:
                    text = z.read(name).decode()
                except UnicodeDecodeError:  # a test of encodings
                    continue
                yield "\n".join(text.splitlines()) + "\n"


def find_wheel(folder: Path, name: str, row: Mapping[str, str]) -> Path:
    for path in folder.glob("*.whl"):
        project, version = path.name.split("-")[:2]
        same = project.lower().replace("_", "-") == name and version == row["version"]
        if same and hashlib.sha256(path.read_bytes()).hexdigest() == row["sha256"]:
            return path
    raise PlanError(f"{folder} has no wheel of {name} {row['version']} with SHA-256 {row['sha256']}")


def read(manifest: Mapping[str, Any], folder: Path) -> dict[str, list[str]]:
    """Files by split. Whole packages are held out, and no file is there twice: packages copy each other."""
    seen: set[bytes] = set()
    texts: dict[str, list[str]] = {}
    for split in reversed(SPLITS):  # of a copy, the held-out one stays
        texts[split] = []
        for name, row in manifest[split].items():
            for text in sources(find_wheel(folder, name, row), manifest["largest_file"]):
                key = hashlib.sha256(text.encode()).digest()
                if key not in seen:
                    seen.add(key)
                    texts[split].append(text)
    return texts


def tokenize(texts: Mapping[str, list[str]], size: int) -> dict[str, np.ndarray]:
    try:
        from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    except ModuleNotFoundError as e:
        raise PlanError(f"making the corpus needs tokenizers: pip install tokenizers ({e})") from e
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=size, initial_alphabet=alphabet, special_tokens=[END], show_progress=False
    )
    bpe.train_from_iterator(texts["train"], trainer)
    end = bpe.token_to_id(END)
    arrays: dict[str, np.ndarray] = {}
    for split in SPLITS:
        parts = []
        for at in range(0, len(texts[split]), 1000):
            encodings = bpe.encode_batch_fast(texts[split][at : at + 1000], add_special_tokens=False)
            parts += [np.array([*e.ids, end], np.uint16) for e in encodings]
        arrays[split] = np.concatenate(parts)
    vocabulary = bpe.get_vocab()
    words = sorted(vocabulary, key=vocabulary.__getitem__)
    # A byte-level token has one character a byte.
    arrays["lengths"] = np.array([0 if w == END else len(w) for w in words], np.uint8)
    arrays["words"] = joined(words)
    return arrays


def make(manifest: Mapping[str, Any], wheels: Path, out: Path) -> dict[str, np.ndarray]:
    arrays = tokenize(read(manifest, wheels), manifest["vocabulary"])
    save(out / FILE, arrays)
    return arrays


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m agdopt.race.tasks.code", description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help=f"folder for {FILE}")
    parser.add_argument("--manifest", type=Path, default=Path(__file__).with_name("code.toml"))
    parser.add_argument("--wheels", type=Path, help="folder that has the wheels; default: pip downloads them")
    args = parser.parse_args(argv)
    try:
        manifest = tomllib.loads(args.manifest.read_text())
        with tempfile.TemporaryDirectory() as temporary:
            if args.wheels is None:
                download(manifest, Path(temporary))
            arrays = make(manifest, args.wheels or Path(temporary), args.out)
    except PlanError as e:
        print(e, file=sys.stderr)
        return 2
    except (OSError, subprocess.CalledProcessError) as e:
        print(f"{e}", file=sys.stderr)
        return 1
    for split in SPLITS:
        print(f"{split}: {len(arrays[split]):,} tokens, {arrays['lengths'][arrays[split]].sum():,} bytes")
    size = (args.out / FILE).stat().st_size / 2**20
    print(f"sha256 = {digest(arrays[split] for split in SPLITS)!r}   {size:.1f} MiB")
    return 0
