import itertools

import pytest
import torch

from agdopt.race.task import MissingData
from agdopt.race.tasks.cifar10 import NETS, Cifar10, ResNet, read_batches
from agdopt.race.tasks.ptb import MD5, Lstm, Ptb, columns, drop

CPU = torch.device("cpu")


def count(model):
    return sum(p.numel() for p in model.parameters())


@pytest.fixture(autouse=True)
def _one_thread():
    torch.set_num_threads(1)


def test_resnets_have_the_papers_parameters():
    with torch.device("meta"):
        counts = {net: count(ResNet(*shape)) for net, shape in NETS.items()}
    assert counts == {"resnet20": 272_474, "resnet32": 466_906, "resnet18": 11_173_962}


@pytest.mark.parametrize(("layers", "parameters"), [(1, 5_293_200), (2, 13_632_400), (3, 24_221_600)])
def test_lstms_have_the_papers_parameters(layers, parameters):
    with torch.device("meta"):
        assert count(Lstm(layers, 20, 10_000, 400, 1150)) == parameters


def test_a_missing_set_is_one_sentence(tmp_path):
    for make, words in ((Cifar10, "cs.toronto.edu"), (Ptb, "github.com")):
        with pytest.raises(MissingData) as error:
            make(device=CPU, batch=20, data=tmp_path)
        assert words in str(error.value)
        assert str(tmp_path) in str(error.value)
        assert "--data DIR or AGDOPT_DATA" in str(error.value)
    (tmp_path / "cifar-10-batches-py").mkdir()
    with pytest.raises(MissingData, match="lacks data_batch_1"):
        Cifar10(device=CPU, batch=20, data=tmp_path)
    (tmp_path / "train.txt").write_text("something else")
    with pytest.raises(MissingData, match="is not Mikolov's PTB"):
        Ptb(device=CPU, batch=20, data=tmp_path)


@pytest.fixture(scope="module")
def cifar(data):
    try:
        return Cifar10(device=CPU, batch=256, data=data, valid=5000)
    except MissingData as missing:
        pytest.skip(str(missing))


@pytest.fixture(scope="module")
def ptb(data):
    try:
        return Ptb(device=CPU, batch=20, data=data, embedding=16, hidden=24, layers=2)
    except MissingData as missing:
        pytest.skip(str(missing))


def test_cifar_crops_and_flips(cifar):
    x, y = cifar.splits["train"]
    assert x.shape == (45_000, 40, 40, 3)
    assert x.is_contiguous()
    assert len(cifar.splits["valid"][0]) == 5000
    assert len(cifar.splits["test"][0]) == 10_000
    rows = torch.arange(64)
    torch.manual_seed(3)
    images, labels = cifar.fetch((rows,))
    assert torch.equal(labels, y[:64])
    seen = set()
    places = list(itertools.product(range(9), range(9), (False, True)))
    for image, padded in zip(images, x[:64], strict=True):
        found = set()
        for down, across, flip in places:
            crop = padded[down : down + 32, across : across + 32]
            if torch.equal(crop.flip(1) if flip else crop, image):
                found.add((down, across, flip))
        assert found
        seen |= found
    assert {s[0] for s in seen} == {s[1] for s in seen} == set(range(9))
    assert {s[2] for s in seen} == {False, True}
    assert not x[:, :4].any()
    assert not x[:, :, -4:].any()


def test_cifar_is_normalised_as_the_paper_says(cifar):
    images, _ = cifar.splits["test"]
    x = cifar._images(images[:2000])
    assert x.is_contiguous(memory_format=torch.channels_last)
    mean, sd = torch.tensor([[0.4914, 0.4822, 0.4465], [0.2023, 0.1994, 0.2010]]).double()
    expected = ((images[:2000].double() / 255 - mean) / sd).permute(0, 3, 1, 2)
    torch.testing.assert_close(x.double(), expected, rtol=1e-5, atol=1e-5)


def test_cifar_learns(cifar):
    torch.manual_seed(0)
    model = cifar.model()
    batch = cifar.fetch((torch.arange(64),))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    losses = []
    for _ in range(6):
        optimizer.zero_grad()
        losses.append(cifar.loss(model, batch))
        losses[-1].backward()
        optimizer.step()
    assert losses[-1] < 0.8 * losses[0]


def test_columns_cut_the_text():
    assert columns(torch.arange(11), 2).tolist() == [[0, 5], [1, 6], [2, 7], [3, 8], [4, 9]]


def test_dropped_entries_are_zero_and_the_mean_stays():
    torch.manual_seed(0)
    x = drop(torch.ones(10, 4000), 0.4, (1, 4000))
    assert x.unique().tolist() == pytest.approx([0, 1 / 0.6])
    assert torch.equal(x[0], x[9])
    assert x.mean().item() == pytest.approx(1, abs=0.05)


def test_ptb_has_the_papers_words(ptb):
    assert ptb.vocabulary == 10_000
    assert {k: v[0].shape for k, v in ptb.splits.items()} == {
        "train": (46_479, 20), "valid": (7_376, 10), "test10": (8_243, 10), "test": (82_430, 1),
    }  # fmt: skip
    assert set(MD5) == {"train", "valid", "test"}


def test_ptb_windows_cover_the_text_in_order(ptb):
    model = ptb.model()
    model.h0.fill_(1.0)
    steps = ptb.batches(model, seed=5)
    assert not model.h0.any()
    (text,) = ptb.splits["train"]
    # The last word or two have no window of their own: so do the scripts.
    read = torch.cat([s.inputs[0] for s in steps])
    assert len(text) - 2 <= len(read) <= len(text) - 1
    assert torch.equal(read, text[: len(read)])
    assert torch.equal(torch.cat([s.inputs[1] for s in steps]), text[1 : len(read) + 1])
    lengths = torch.tensor([float(len(s.inputs[0])) for s in steps])
    assert 66 < lengths.mean() < 70
    assert all(s.lr_scale == pytest.approx(len(s.inputs[0]) / 70) for s in steps[:-1])


def test_ptb_carries_its_state_and_cuts_its_gradient(ptb):
    torch.manual_seed(0)
    model = ptb.model()
    model.eval()  # no dropout: two windows must be as one
    words = ptb.splits["train"][0][:31]
    ptb.batches(model, 0)
    for at in (0, 15):
        ptb.loss(model, (words[at : at + 15], words[at + 1 : at + 16])).backward()
    _, _, states = model(words[:30], model.zero_state(20))
    for (h, c), (expected_h, expected_c) in zip(model.carried(), states, strict=True):
        torch.testing.assert_close(h, expected_h)
        torch.testing.assert_close(c, expected_c)


def test_ptb_perplexity_is_that_of_the_whole_text(ptb):
    torch.manual_seed(0)
    model = ptb.model().eval()
    (text,) = ptb.splits["valid"]
    short = text[:601]
    ptb.splits["short"] = (short,)
    with torch.no_grad():
        logits = model.decode(model(short[:-1], model.zero_state(10))[1])
        expected = torch.nn.functional.cross_entropy(logits, short[1:].flatten())
        torch.testing.assert_close(ptb.evaluate(model, "short")["loss"], expected)


def test_a_batch_that_is_not_cifar_is_refused(tmp_path):
    import pickle

    table = {"data": torch.zeros(10, 3072, dtype=torch.uint8).numpy(), "labels": [0] * 10}
    (tmp_path / "test_batch").write_bytes(pickle.dumps(table))
    with pytest.raises(MissingData, match="published pixels and labels"):
        read_batches(tmp_path, ["test_batch"])
