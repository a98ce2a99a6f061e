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
from agdopt.race.paper import figures, page
from agdopt.race.paper.listing import Line, listing
from agdopt.race.probe_result import adabelief_steps, adam_steps
from agdopt.race.record import tables
from agdopt.race.speed import fingerprint

RECORDS, FIGURES = Path("results/numerical/records.jsonl"), Path("docs/figures")

WORKS = {
    "large": "one large tensor",
    "gpt": "a GPT",
    "resnet20": "ResNet20, 59 tensors",
    "many": "1000 tensors of 1000",
}
SHOWN = ("AGD", "AGD, bf16 states", "AGD, all bf16", "AGD foreach", "AdamW foreach")


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
        "float32 but where it says otherwise; medians over interleaved rounds, of ten steps each for small "
        "models; less is faster. `agdopt speed` prints yours."
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


def migration_block() -> str:
    """What becomes of lr, decay and delta, at beta1 = 0.9."""
    adam, belief = adam_steps(0.9), adabelief_steps(0.9)
    rows = [
        ("from", "to AGDW", "to AGD (the paper's)"),
        ("---",) * 3,
        (
            "AdamW",
            "lr, weight_decay as they are",
            f"lr / {adam:.2f}, weight_decay * {adam:.2f}; delta by the probe, eps at first",
        ),
        (
            "Adam",
            "as AdamW; where it has weight_decay, also `decoupled_weight_decay=False`",
            f"lr / {adam:.2f}; weight_decay as it is with `decoupled_weight_decay=False`; delta as above",
        ),
        (
            "SGD with momentum",
            "AdamW's usual lr for such a model, and a search around it; weight_decay: SGD's lr * decay / lr",
            "`from_sgd(optimizer, delta)`: lr * delta / (1 - momentum), decay as it is; delta by the probe",
        ),
        (
            "AdaBelief",
            f"lr * {adam / belief:.2f}; decay divided by as much, if decoupled",
            f"lr / {belief:.0f}; a decoupled decay * {belief:.0f}; delta by the probe",
        ),
    ]
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


def probe_block(found: list[dict[str, Any]]) -> str:
    """The choices of each probed task, newest record first."""
    parts = []
    for record in {json.dumps(r["task"], sort_keys=True): r for r in found}.values():
        task, low, middle, high = record["task"], *(record["bhat"][q] for q in ("0.05", "0.5", "0.95"))
        options = "".join(f", {k} {v}" for k, v in task.items() if k != "name")
        batches = f"{record['batches']} batches of {record['batch']}"
        still = f"{1 - record['changing']:.1%} of {record['coordinates']:,} coordinates never change"
        parts.append(
            f"**{task['name']}{options}** at initialisation, {batches}: bhat is {low:.1e}, {middle:.1e}, "
            f"{high:.1e} at 5%, 50% and 95%; {still}. In place of AdamW at {record['adamw_lr']:g}:"
        )
        lines = ["| adaptive share | delta | lr | lr / delta |", "| --- | --- | --- | --- |"]
        for row in record["choices"]:
            share, delta, lr = row["share"], row["delta"], row["lr"]
            told = f"{delta:.1e} | {lr:.1e} | {lr / delta:.1e}" if delta else "- | - | -"
            lines.append(f"| {share:.0%} | {told} |")
        parts.append("\n".join(lines))
    return "\n\n".join(parts) or "No task has been probed yet: `agdopt probe` does it on yours."


def filled(text: str, name: str, block: str) -> str:
    pattern = re.compile(rf"(<!-- generated: {name} -->\n).*?(<!-- end -->)", re.DOTALL)
    if not pattern.search(text):
        raise ValueError(f"no block '<!-- generated: {name} -->' ... '<!-- end -->' to fill")
    return pattern.sub(lambda match: match[1] + "\n" + block + "\n\n" + match[2], text)


def pages(root: Path, lines: list[Line]) -> dict[Path, str]:
    """Every page that is generated, whole or in blocks, as it should be."""
    found = {
        Path("README.md"): {
            "paper": page.readme(lines),
            "speed": speed_block(tables(root / "results/speed.jsonl")),
        },
        Path("docs/from-adamw.md"): {"migration": migration_block()},
        Path("docs/choosing-delta.md"): {"probe": probe_block(tables(root / "results/probe.jsonl"))},
    }
    numerical = read(root / RECORDS)
    for name, blocks in BLOCKS.items():
        found[Path(name)] = {block: make(numerical) for block, make in blocks.items()}
    texts = {Path("docs/results.md"): page.results(lines)}
    for file, made in found.items():
        texts[file] = (root / file).read_text()
        for name, block in made.items():
            texts[file] = filled(texts[file], name, block)
    return texts


def is_fresh(file: Path, text: str) -> bool:
    return file.exists() and file.read_text() == text


def main() -> int:
    parser = argparse.ArgumentParser(prog="make docs", description=__doc__)
    parser.add_argument(
        "--check", action="store_true", help="change nothing; exit 1 where something is stale"
    )
    parser.add_argument("--root", type=Path, default=Path())
    root = (args := parser.parse_args()).root
    numerical, lines = read(root / RECORDS), listing(root / "results")
    texts = {file: text for file, text in pages(root, lines).items() if not is_fresh(root / file, text)}
    pictures = stale(numerical, root / FIGURES)
    drawn = figures.stale(figures.pictures(lines), root / FIGURES)
    if args.check:
        names = [*pictures, *(f"{picture.name}.svg" for picture in drawn)]
        for name in [*texts, *(FIGURES / name for name in names)]:
            print(f"{name} is stale: run `make docs`", file=sys.stderr)
        return int(bool(texts or names))
    for file, text in texts.items():
        (root / file).write_text(text)
    draw(numerical, root / FIGURES, sorted({Path(picture).stem for picture in pictures}))
    figures.save(drawn, root / FIGURES)
    return 0


if __name__ == "__main__":
    sys.exit(main())
