"""Pairs of sentences as tokens of one BPE for both languages, and the set's own text to judge by."""

import gzip
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from agdopt.race.checks import PlanError, need
from agdopt.race.task import MissingData, find_data
from agdopt.race.tasks._prepared import joined
from agdopt.race.tasks._transformer import EOS

SPLITS = ("train", "valid", "test")
SPECIAL = ("<pad>", "</s>", "<unk>")
BEGIN, END = "▁", "</w>"  # of a word
# Folders to look in, and the files' names before .de and .en (or .de.gz).
SETS: dict[str, tuple[tuple[str, ...], tuple[str, ...], str]] = {
    "iwslt14": (
        ("iwslt14", "iwslt14.tokenized.de-en/tmp"),
        ("train", "valid", "test"),
        "fairseq's examples/translation/prepare-iwslt14.sh (the lower-cased text in its tmp, and its code)",
    ),
    "multi30k": (
        ("multi30k",),
        ("train.lc.norm.tok", "val.lc.norm.tok", "test_2016_flickr.lc.norm.tok"),
        "https://github.com/multi30k/dataset (data/task1/tok)",
    ),
}
CODES = ("bpe_codes_10k", "../code", "code")  # merges learnt by subword-nmt, where the set comes with them
SIZE = 10_152  # of the vocabulary where it does not: what gives the paper's 36.7M parameters [I]


def _there(path: Path) -> Path | None:
    return next((p for p in (path, path.with_name(path.name + ".gz")) if p.is_file()), None)


def text(pieces: Iterable[str]) -> str:
    return "".join(pieces).replace(BEGIN, " ").replace(END, " ").strip()


def lines(path: Path) -> list[str]:
    found = _there(path)
    if found is None:
        raise MissingData(f"{path} (or {path.name}.gz) is not there, though other files of its set are")
    data = found.read_bytes()
    return (gzip.decompress(data) if found.suffix == ".gz" else data).decode().strip("\n").split("\n")


def prepare(root: Path | None, name: str) -> dict[str, np.ndarray]:
    folders, stems, where = SETS[name]
    paths = [f"{f}/{stems[0]}.de{z}" for f in folders for z in ("", ".gz")]
    folder = find_data(root, paths, f"{name}'s training set", where).parent
    texts = {
        s: [lines(folder / f"{stem}.{x}") for x in ("de", "en")]
        for s, stem in zip(SPLITS, stems, strict=True)
    }
    for split, (de, en) in texts.items():
        need(len(de) == len(en), f"{folder}: {split} has {len(de)} German lines and {len(en)} English ones")
    both = [*texts["train"][0], *texts["train"][1]]
    codes = next((p for c in CODES if (p := _there(folder / c))), None)
    bpe = _bpe(both, None if codes is None else lines(codes))
    coded = {
        split: [[e.ids for e in bpe.encode_batch_fast(side)] for side in sides]
        for split, sides in texts.items()
    }
    # As fairseq does: the vocabulary is what training holds, by frequency.
    counts = Counter(i for side in coded["train"] for ids in side for i in ids)
    unknown = bpe.token_to_id(SPECIAL[2])
    used = [i for i, _ in sorted(counts.items(), key=lambda item: (-item[1], item[0])) if i != unknown]
    new = np.full(bpe.get_vocab_size(), SPECIAL.index("<unk>"))
    new[used] = np.arange(len(SPECIAL), len(SPECIAL) + len(used))
    arrays = {"words": joined([*SPECIAL, *(bpe.id_to_token(i) for i in used)])}
    for split, sides in coded.items():
        for language, side in zip(("de", "en"), sides, strict=True):
            ids = [np.append(new[np.array(i, int)], EOS) for i in side]
            arrays[f"{split}.{language}"] = np.concatenate(ids).astype(np.uint16)
            arrays[f"{split}.{language}.lengths"] = np.array([len(i) for i in ids], np.uint16)
    arrays["test.text"] = joined(texts["test"][1])
    return arrays


def _bpe(texts: Sequence[str], merges: Sequence[str] | None) -> Any:
    try:
        from tokenizers import Tokenizer, models, pre_tokenizers, trainers
    except ModuleNotFoundError as e:
        raise PlanError(
            f"{e}: pip install tokenizers, or make the tokens elsewhere: "
            "python -m agdopt.race.tasks.translation --out DIR"
        ) from e
    unknown = SPECIAL[2]
    if merges is None:
        # Words marked where they begin: trained with marked ends, the library breaks ties by chance.
        bpe = Tokenizer(models.BPE(unk_token=unknown))
        bpe.pre_tokenizer = pre_tokenizers.Metaspace(BEGIN, prepend_scheme="always")
        trainer = trainers.BpeTrainer(vocab_size=SIZE, special_tokens=list(SPECIAL), show_progress=False)
        bpe.train_from_iterator(texts, trainer)
        return bpe
    pairs = [(a, b) for a, _, b in (m.partition(" ") for m in merges if not m.startswith("#version"))]
    letters = sorted({c for t in texts for c in t if not c.isspace()})
    words = [*SPECIAL, *letters, *(c + END for c in letters), *(a + b for a, b in pairs)]
    known = dict.fromkeys(words)
    fine = [(a, b) for a, b in pairs if a in known and b in known]
    vocabulary = {w: i for i, w in enumerate(known)}
    bpe = Tokenizer(models.BPE(vocabulary, fine, unk_token=unknown, end_of_word_suffix=END))
    bpe.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return bpe
