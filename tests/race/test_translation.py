"""Translation: the model, its batches, beam search, BPE from given codes, BLEU."""

import gzip
import itertools

import pytest
import torch

from agdopt.race.checks import PlanError
from agdopt.race.task import MissingData
from agdopt.race.tasks._transformer import EOS, PAD, Transformer, search

CPU = torch.device("cpu")
SIZES = {"width": 32, "hidden": 64, "heads": 2, "layers": 1}


@pytest.fixture
def make():
    pytest.importorskip("tokenizers")
    from agdopt.race.tasks.translation import Translation

    return lambda data, **more: Translation(device=CPU, data=data, **{"batch": 256, **SIZES, **more})


def iwslt(folder, codes=None):
    """A set in fairseq's layout: numbers to numbers, in words of few letters."""
    folder = folder / "iwslt14"
    folder.mkdir()
    words = [a + b for a, b in itertools.product("aeiou", "bdlmn")]
    for split, count in (("train", 60), ("valid", 9), ("test", 7)):
        rows = [[words[(i * k) % 25] for k in range(1, 3 + i % 9)] for i in range(count)]
        for language, turn in (("de", 1), ("en", -1)):
            text = "\n".join(" ".join(r[::turn]) for r in rows) + "\n"
            (folder / f"{split}.{language}.gz").write_bytes(gzip.compress(text.encode()))
    if codes:
        (folder / "bpe_codes_10k").write_text(codes)
    return folder.parent


def test_the_transformer_has_the_papers_parameters():
    with torch.device("meta"):
        model = Transformer(10_152, 512, 1024, 4, 6, 0.3)
    assert sum(p.numel() for p in model.parameters()) == 36_743_168


def test_missing_sets_are_sentences(make, tmp_path):
    with pytest.raises(MissingData, match=r"iwslt14's training set is not there.*prepare-iwslt14\.sh"):
        make(tmp_path)
    with pytest.raises(PlanError, match="did you mean 'multi30k'"):
        make(tmp_path, pairs="multi30")


def test_given_codes_are_used(make, tmp_path):
    """What subword-nmt does with these merges, by hand."""
    task = make(iwslt(tmp_path, "#version: 0.2\na b</w>\ne b</w>\n"))
    assert "ab</w>" in task.words
    assert "eb</w>" in task.words
    ids = task.splits["test"][0][2].tolist()
    assert (
        task.text(ids)
        == gzip.decompress((tmp_path / "iwslt14/test.de.gz").read_bytes()).decode().split("\n")[2]
    )
    assert all(len(w.replace("</w>", "")) == 1 or w in ("ab</w>", "eb</w>") for w in task.words[3:])


def test_the_tokens_may_be_made_once(make, tmp_path, capsys):
    from agdopt.race.tasks import translation

    data = iwslt(tmp_path)
    assert translation.main(["--data", str(data), "--out", str(tmp_path / "made")]) == 0
    sha = capsys.readouterr().out.split("sha256 = '")[1][:64]
    a, b = make(data), make(tmp_path / "made", sha256=sha)
    assert a.words == b.words
    assert a.references == b.references
    assert torch.equal(a.splits["train"][1], b.splits["train"][1])
    with pytest.raises(MissingData, match="the plan means abc"):
        make(data, sha256="abc")


def test_an_epoch_has_every_pair_once_in_few_shapes(make, tmp_path):
    task = make(iwslt(tmp_path))
    steps = task.batches(task.model(), 3)
    assert all(s.inputs[0].numel() <= 256 for s in steps)
    assert len({s.inputs[0].shape for s in steps}) <= 2
    seen = sorted(
        tuple(row[row != PAD].tolist()) for s in steps for row in torch.cat(s.inputs, 1) if (row != PAD).any()
    )
    source, target = (t[:-1] for t in task.splits["train"])
    assert seen == sorted(tuple(r[r != PAD].tolist()) for r in torch.cat([source, target], 1))


def test_padding_changes_no_loss(make, tmp_path):
    task = make(iwslt(tmp_path))
    model = task.model().eval()
    rows = torch.tensor([3, 5, 60])  # the last is the empty one
    loss = task.loss(model, task.fetch(task._cut("train", rows, 32)))
    assert torch.isfinite(loss)
    total = count = 0
    for i in (0, 1):
        source, target = (t[rows[i]][None] for t in task.splits["train"])
        batch = task.fetch((source[source != PAD][None], target[target != PAD][None]))
        total += task._cross_entropy(model, batch, reduction="sum", label_smoothing=0.1)
        count += (batch[2] != PAD).sum()
    torch.testing.assert_close(loss, total / count)


def scored(model, source, words, penalty):
    given = torch.tensor([[EOS, *words[:-1]]])
    logp = model(source, given)[0].log_softmax(-1)
    return float(sum(logp[i, w] for i, w in enumerate(words))) / len(words) ** penalty


@pytest.mark.parametrize("penalty", [0.0, 1.0, 2.0])
def test_a_wide_beam_finds_the_best_of_all(penalty):
    """Every sentence of at most three words and an end, scored one by one."""
    torch.manual_seed(1)
    model = Transformer(5, 16, 32, 2, 1, 0.0).eval()
    source = torch.tensor([[3, 4, 2, EOS], [4, EOS, PAD, PAD]])
    every = [[*w, EOS] for n in range(4) for w in itertools.product((2, 3, 4), repeat=n)]
    with torch.no_grad():
        found = search(model, source, 200, penalty, 4)
        greedy = search(model, source, 1, penalty, 4)
        for i, row in enumerate(found.tolist()):
            alone = source[i][source[i] != PAD][None]
            best = max(every, key=lambda words, alone=alone: scored(model, alone, words, penalty))
            assert [w for w in row if w != PAD] == best
        for i, row in enumerate(greedy.tolist()):
            words, given = [], [EOS]
            while given[-1] != EOS or len(given) == 1:
                logits = model(source[i : i + 1], torch.tensor([given]))[0, -1]
                logits[PAD] = -torch.inf
                given.append(EOS if len(given) == 4 else int(logits.argmax()))
            words = given[1:]
            assert [w for w in row if w != PAD] == words


def test_it_learns_to_translate_and_bleu_says_so(make, tmp_path):
    task = make(iwslt(tmp_path), dropout=0.0, smoothing=0.0)
    task.splits["test"] = task.splits["train"]
    from agdopt.race.tasks._pairs import lines

    task.references = [t.upper() for t in lines(tmp_path / "iwslt14/train.en")]
    torch.manual_seed(0)
    model = task.model()
    with torch.no_grad():
        assert task.evaluate(model.eval(), "test")["bleu"] < 10
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for epoch in range(60):
        for step in task.batches(model.train(), epoch):
            optimizer.zero_grad()
            task.loss(model, task.fetch(step.inputs)).backward()
            optimizer.step()
    with torch.no_grad():
        assert task.evaluate(model.eval(), "test")["bleu"] > 60  # whatever the case of the letters


def test_composed_attention_can_be_differentiated_twice(make, tmp_path):
    task = make(iwslt(tmp_path), attention="math")
    model = task.model().eval()
    batch = task.fetch(task._cut("train", torch.arange(4), 32))
    loss = task.loss(model, batch)
    torch.testing.assert_close(loss, make(tmp_path).loss(model, batch))
    gradient = torch.autograd.grad(loss, list(model.parameters()), create_graph=True)
    sum(g.square().sum() for g in gradient).backward()
    assert all(p.grad.isfinite().all() for p in model.parameters())


@pytest.mark.parametrize("length", [2, 3, 12])
def test_bleu_by_hand_is_sacrebleus(length):
    """Short sentences too, where whole orders have no match or are not there."""
    pytest.importorskip("sacrebleu")
    from agdopt.race.tasks._bleu import bleu, by_hand

    random = torch.Generator().manual_seed(length)

    def sentence(upper):
        count = int(torch.randint(1, length, (), generator=random))
        words = [f"w{int(i)}" for i in torch.randint(0, 5, (count,), generator=random)]
        return " ".join(w.upper() if upper else w for w in words)

    for _ in range(30):
        texts, references = ([sentence(upper) for _ in range(4)] for upper in (False, True))
        assert by_hand(texts, references) == pytest.approx(bleu(texts, references), abs=1e-9)
    for texts in (["x y"], [""], ["w1 w2 w3 w4 w5"], ["w1 w2"]):
        expected = bleu(texts, ["w1 w2 w3 w4 w5"])
        assert by_hand(texts, ["w1 w2 w3 w4 w5"]) == pytest.approx(expected, abs=1e-9)
