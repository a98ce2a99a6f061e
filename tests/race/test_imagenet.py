"""Images from folders or zip files, cut as the recipe says."""

import zipfile

import numpy as np
import pytest
import torch

from agdopt.race.task import MissingData
from agdopt.race.tasks._resnet import NETS, ResNet
from agdopt.race.tasks.imagenet import ImageNet, View, crop

Image = pytest.importorskip("PIL.Image")
CPU = torch.device("cpu")


@pytest.fixture
def folder(tmp_path):
    """Two classes of gradients: red is the column, green the row."""
    column, row = np.meshgrid(np.arange(90, dtype=np.uint8), np.arange(70, dtype=np.uint8))
    pixels = np.stack([column, row, np.zeros_like(row)], 2)
    for split, count in (("train", 6), ("val", 3)):
        for k, name in enumerate(("n1", "n2")):
            (tmp_path / "set" / split / name).mkdir(parents=True)
            for i in range(count):
                pixels[..., 2] = 100 * k + i
                Image.fromarray(pixels).save(tmp_path / "set" / split / name / f"{i}.PNG")
    return tmp_path


def make(folder, **more):
    return ImageNet(device=CPU, batch=4, data=folder, **{"folder": "set", "size": 32, **more})


def test_resnet18_has_the_papers_parameters():
    with torch.device("meta"):
        model = ResNet(*NETS["resnet18"], classes=1000, small=False)
    assert sum(p.numel() for p in model.parameters()) == 11_689_512


def test_a_missing_set_is_a_sentence(tmp_path):
    with pytest.raises(
        MissingData, match=r"imagenet's train is not there: get it from https://image-net\.org"
    ):
        ImageNet(device=CPU, batch=4, data=tmp_path)
    (tmp_path / "set/train").mkdir(parents=True)
    with pytest.raises(MissingData, match="has no images"):
        make(tmp_path)


def test_an_epoch_has_every_image_once_and_is_decided_by_its_seed(folder):
    task = make(folder)
    steps = task.batches(torch.nn.Identity(), 5)
    assert [len(s.inputs[1]) for s in steps] == [4, 4, 4]
    seen = [x for s in steps for x in s.inputs[0]]
    labels = torch.cat([s.inputs[1] for s in steps])
    # Blue tells the file.
    files = sorted((int(y), int(x[0, 0, 2]) - 100 * int(y)) for x, y in zip(seen, labels, strict=True))
    assert files == [(k, i) for k in (0, 1) for i in range(6)]
    again, other = (task.batches(torch.nn.Identity(), s) for s in (5, 6))
    assert torch.equal(again[1].inputs[0], steps[1].inputs[0])
    assert not torch.equal(other[1].inputs[0], steps[1].inputs[0])


def test_crops_and_flips(folder):
    images = make(folder).sets["train"]
    cut = [View(images, 32, seed)[0][0].int() for seed in range(60)]
    assert {bool(x[16, 0, 0] < x[16, -1, 0]) for x in cut} == {True, False}
    assert all(x[0, 16, 1] <= x[-1, 16, 1] for x in cut)  # never upside down
    random = np.random.default_rng(0)
    boxes = np.array([crop(random, 90, 70) for _ in range(400)])
    w, h = boxes[:, 2] - boxes[:, 0], boxes[:, 3] - boxes[:, 1]
    assert boxes.min() >= 0
    assert boxes[:, 2].max() <= 90
    assert boxes[:, 3].max() <= 70
    assert 0.07 < (w * h / 6300).min() < 0.15
    assert 0.7 < (w / h).min() < 0.8
    assert 1.25 < (w / h).max() < 1.42


def test_the_middle_is_judged(folder):
    x, _ = View(make(folder).sets["test"], 64)[0]
    assert x.shape == (64, 64, 3)
    # The shorter side becomes 73 of 70, so 64 of it are about 61 pixels of the original.
    assert x[32, 32].tolist()[:2] == pytest.approx([45, 35], abs=2)
    assert x[0, 0].tolist()[:2] == pytest.approx([45 - 31, 35 - 31], abs=2)


def test_zip_files_are_the_same(folder):
    for split in ("train", "val"):
        with zipfile.ZipFile(folder / "set" / f"{split}.zip", "w") as z:
            for path in sorted((folder / "set" / split).rglob("*.PNG")):
                z.write(path, path.relative_to(folder / "set"))

    def seen():
        task = make(folder)
        with torch.no_grad():
            judged = task.evaluate(model, "test")
        return task.sets["train"].path.suffix, judged, task.batches(model, 1)[0].inputs[0]

    model = make(folder).model().eval()
    (_, judged, batch), _ = seen(), (folder / "set/train").rename(folder / "set/gone")
    (folder / "set/val").rename(folder / "set/gone too")
    kind, again, batch_again = seen()
    assert kind == ".zip"
    assert again == judged
    assert torch.equal(batch, batch_again)
