"""The code corpus, made of small wheels, and the GPT trained on it."""

import hashlib
import math
import zipfile

import numpy as np
import pytest
import torch

from agdopt.race.checks import PlanError
from agdopt.race.optimizers import grouped
from agdopt.race.plan import load
from agdopt.race.run import main
from agdopt.race.task import MissingData
from agdopt.race.tasks._prepared import digest
from agdopt.race.tasks.code import SPLITS, Code, Gpt

CPU = torch.device("cpu")
SIZES = {"width": 32, "layers": 2, "heads": 2, "context": 16}


def source(name, count):
    return "".join(f"def {name}_{i}(x):\n    return x + {i}  # {name} ä\n\n" for i in range(count))


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    _corpus = pytest.importorskip("agdopt.race.tasks._corpus")
    pytest.importorskip("tokenizers")
    folder = tmp_path_factory.mktemp("code")
    manifest = {"vocabulary": 300, "largest_file": 5000}
    shared = source("shared", 5)
    files = {
        "train": {"a.py": source("first", 60), "copy.py": shared, "big.py": source("big", 500)},
        "valid": {"b.py": source("second", 20), "no.txt": "text"},
        "test": {"c.py": shared.replace("\n", "\r\n"), "latin.py": b"\xe4".decode("latin1")},
    }
    for split, some in files.items():
        path = folder / f"{split}_pkg-1.0-py3-none-any.whl"
        with zipfile.ZipFile(path, "w") as z:
            for name, text in some.items():
                z.writestr(name, text.encode("latin1" if name == "latin.py" else "utf8"))
        row = {"version": "1.0", "sha256": hashlib.sha256(path.read_bytes()).hexdigest()}
        manifest[split] = {f"{split}-pkg": row}
    return folder, manifest, _corpus.make(manifest, folder, folder)


def test_the_corpus_is_the_text_split_by_package(corpus):
    folder, manifest, arrays = corpus
    words = bytes(arrays["words"]).decode().split("\n")
    assert len(words) == len(arrays["lengths"]) == 300
    from tokenizers.decoders import ByteLevel

    def text(split):
        return "".join(
            ByteLevel().decode([words[i]]) if words[i] != "<|end|>" else "|" for i in arrays[split]
        )

    # Copied files stay where they are held out; large, foreign and broken ones are left out.
    assert bytes(arrays["words"]).decode().count("<|end|>") == 1
    for split, expected in (("train", source("first", 60)), ("valid", source("second", 20)), ("test", None)):
        expected = expected or source("shared", 5)
        assert text(split).replace("\ufffd", "").replace("ä", "") == expected.replace("ä", "") + "|"
        assert arrays["lengths"][arrays[split]].sum() == len(expected.encode())
    again = Code(device=CPU, batch=4, data=folder, **SIZES)
    assert torch.equal(again.splits["train"][0], torch.from_numpy(arrays["train"].astype(np.int32)))
    row = {**manifest["valid"]["valid-pkg"], "sha256": "0" * 64}
    from agdopt.race.tasks import _corpus

    with pytest.raises(PlanError, match=r"no wheel of valid-pkg 1\.0 with SHA-256 000"):
        _corpus.read({**manifest, "valid": {"valid-pkg": row}}, folder)


def test_a_plan_says_which_text_it_means(corpus, tmp_path):
    folder, _, arrays = corpus
    Code(device=CPU, batch=4, data=folder, sha256=digest(arrays[s] for s in SPLITS), **SIZES)
    with pytest.raises(MissingData, match="the plan means abc"):
        Code(device=CPU, batch=4, data=folder, sha256="abc", **SIZES)
    with pytest.raises(MissingData, match=r"agdopt\.race\.tasks\.code --out"):
        Code(device=CPU, batch=4, data=tmp_path, **SIZES)
    with pytest.raises(PlanError, match="make no batch of 4000"):
        Code(device=CPU, batch=4000, data=folder, **SIZES)


def test_the_gpt_has_30_million_parameters():
    task = load("paper/g1-gpt").task
    with torch.device("meta"):
        model = Gpt(8192, *(task[k] for k in ("context", "width", "layers", "heads")))
    assert sum(p.numel() for p in model.parameters()) == 29_630_976


def test_no_word_sees_the_next(corpus):
    task = Code(device=CPU, batch=4, data=corpus[0], **SIZES)
    model = task.model()
    words = torch.randint(300, (2, 16))
    other = words.clone()
    other[:, 9:] = torch.randint(300, (2, 7))
    a, b = model(words), model(other)
    torch.testing.assert_close(a[:, :9], b[:, :9])
    assert not torch.allclose(a[:, 9:], b[:, 9:])


def test_windows_cover_the_text_once_and_every_token_is_judged(corpus):
    task = Code(device=CPU, batch=4, data=corpus[0], **SIZES)
    (text,) = task.splits["train"]
    model = task.model()
    starts = torch.cat([s.inputs[0] for s in task.batches(model, 3)]).sort().values
    assert starts.unique().numel() == len(starts)
    assert (starts % 16 == starts[0] % 16).all()
    assert len(text) // 16 - 5 <= len(starts)  # the last batch is dropped
    words, target = task.fetch((starts[:3],))
    assert torch.equal(words[1], text[starts[1] : starts[1] + 16].long())
    assert torch.equal(target[:, :-1], words[:, 1:])
    task.splits["short"] = (text[:55],)
    with torch.no_grad():
        parts = [
            torch.nn.functional.cross_entropy(
                model(text[None, i : min(i + 16, 54)].long())[0],
                text[i + 1 : min(i + 17, 55)].long(),
                reduction="sum",
            )
            for i in range(0, 54, 16)
        ]
        judged = task.evaluate(model, "short")
    torch.testing.assert_close(judged["loss"], sum(parts) / 54)
    held = task.lengths[text[1:55].long()].sum()
    torch.testing.assert_close(judged["bits_per_byte"], sum(parts) / math.log(2) / held)


def test_muon_takes_hidden_matrices_only(corpus):
    po = pytest.importorskip("pytorch_optimizer")
    model = Gpt(300, 16, 32, 2, 2)
    params = list(model.parameters())
    hidden, rest = grouped(po.Muon, model, params)
    assert (hidden["use_muon"], rest["use_muon"]) == (True, False)
    assert len(hidden["params"]) == 2 * 6
    assert {p.shape for p in rest["params"]} == {(300, 32), (16, 32), (32,)}
    assert grouped(torch.optim.SGD, model, params) is params


@pytest.mark.parametrize("name", ["agd", "muon", "schedulefree"])
def test_the_plan_learns_at_the_reduced_scale(corpus, tmp_path, name, capsys):
    pytest.importorskip("pytorch_optimizer")
    settings = ["task.sha256=''", "task.context=16", "batch=4", "task.width=32"]
    sets = [word for s in settings for word in ("--set", s)]
    more = ["--optimizers", name, "--data", str(corpus[0]), "--device", "cpu", "--out", str(tmp_path)]
    assert main(["paper/g1-gpt", "--scale", "reduced", *sets, *more]) == 0
    from agdopt.race.record import read

    (record,) = read(tmp_path).values()
    assert record.curves["valid.loss"][-1] < math.log(300)
    assert record.metrics["test.bits_per_byte"] > 0
