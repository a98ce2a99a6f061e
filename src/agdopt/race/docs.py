"""make docs: the generated blocks and pictures of the documentation, from the records in results/."""

import argparse
import json
import re
import sys
from pathlib import Path
from typing import Any

from agdopt.race.numerical import read
from agdopt.race.numerical.page import BLOCKS
from agdopt.race.numerical.pictures import draw, stale
from agdopt.race.speed import fingerprint

RECORDS, FIGURES = Path("results/numerical/records.jsonl"), Path("docs/figures")

WORKS = {
    "large": "one large tensor",
    "gpt": "a GPT",
    "resnet20": "ResNet20, 59 tensors",
    "many": "1000 tensors of 1000",
}
SHOWN = ("AGD", "AGD, bf16 states", "AGD, all bf16", "AGD foreach", "AdamW foreach")


def records(folder: Path) -> list[dict[str, Any]]:
    file = folder / "speed.jsonl"
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def speed_block(found: list[dict[str, Any]]) -> str:
    """One table a device, its newest record for each work; older versions of the code are named as such."""
    current = fingerprint()
    devices: dict[str, dict[str, dict[str, Any]]] = {}
    for record in found:
        devices.setdefault(record["device"], {})[record["work"]] = record
    if not devices:
        return "Speed has not been measured on this version: `agdopt speed` does it on your machine."
    parts = [
        "Time of a whole `step()` relative to `torch.optim.AdamW(fused=True)` in one run. Parameters are "
        "float32 but where it says otherwise; medians over interleaved rounds; less is faster. "
        "`agdopt speed` prints yours."
    ]
    for device, works in devices.items():
        some = next(iter(works.values()))
        fresh = all(record["fingerprint"] == current for record in works.values())
        title = f"{device}, torch {some['torch']}, {some['threads']} threads, {some['when'][:10]}"
        parts.append(f"**{title}**" + ("" if fresh else " (not measured on this version)"))
        shown = [n for n in SHOWN if all(any(r["name"] == n for r in w["rows"]) for w in works.values())]
        lines = ["| | " + " | ".join(shown) + " |", "| --- |" + " --- |" * len(shown)]
        for work, title in WORKS.items():
            if work in works:
                ratios = {row["name"]: row["ratio"] for row in works[work]["rows"]}
                lines.append(f"| {title} | " + " | ".join(f"{ratios[name]:.2f}" for name in shown) + " |")
        steps = some["first_step"]
        lines.append("")
        lines.append(
            f"First step of a process: {steps['cold']:.1f} s, {steps['cached']:.1f} s once it is on disk."
        )
        parts.append("\n".join(lines))
    return "\n\n".join(parts)


def filled(text: str, name: str, block: str) -> str:
    pattern = re.compile(rf"(<!-- generated: {name} -->\n).*?(<!-- end -->)", re.DOTALL)
    if not pattern.search(text):
        raise ValueError(f"no block '<!-- generated: {name} -->' ... '<!-- end -->' to fill")
    return pattern.sub(lambda match: match[1] + "\n" + block + "\n\n" + match[2], text)


def pages(root: Path) -> dict[Path, str]:
    """Every page with generated blocks, as it should be."""
    found = {Path("README.md"): {"speed": speed_block(records(root / "results"))}}
    numerical = read(root / RECORDS)
    for name, blocks in BLOCKS.items():
        found[Path(name)] = {block: make(numerical) for block, make in blocks.items()}
    texts = {}
    for page, made in found.items():
        texts[page] = (root / page).read_text()
        for name, block in made.items():
            texts[page] = filled(texts[page], name, block)
    return texts


def main() -> int:
    parser = argparse.ArgumentParser(prog="make docs", description=__doc__)
    parser.add_argument(
        "--check", action="store_true", help="change nothing; exit 1 where something is stale"
    )
    parser.add_argument("--root", type=Path, default=Path())
    root = (args := parser.parse_args()).root
    numerical = read(root / RECORDS)
    texts = {page: text for page, text in pages(root).items() if (root / page).read_text() != text}
    pictures = stale(numerical, root / FIGURES)
    if args.check:
        for name in [*texts, *(FIGURES / picture for picture in pictures)]:
            print(f"{name} is stale: run `make docs`", file=sys.stderr)
        return int(bool(texts or pictures))
    for page, text in texts.items():
        (root / page).write_text(text)
    draw(numerical, root / FIGURES, sorted({Path(picture).stem for picture in pictures}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
