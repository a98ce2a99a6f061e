"""agdopt switch: from a monitor's file to the picture."""

import json

import pytest

from agdopt.race.cli import main
from agdopt.race.switch_figure import bands, read

REPORTS = [
    {"switch/step": 100, "switch/adaptive": 0.5, "switch/decade/-3": 0.7, "switch/decade/-5": 0.3},
    {"switch/step": 200, "switch/adaptive": 0.4, "switch/decade/-3": 0.2, "switch/decade/-4": 0.8},
    {"switch/step": 200, "switch/adaptive": 0.3, "switch/decade/-4": 0.9, "switch/zero": 0.1},
]


def write(tmp_path, reports):
    path = tmp_path / "switch.jsonl"
    path.write_text("".join(json.dumps(report) + "\n" for report in reports))
    return path


def test_a_decade_that_is_not_told_is_empty_and_the_later_report_of_a_step_counts(tmp_path):
    assert read(write(tmp_path, REPORTS)) == {
        "switch.step": [100, 200],
        "switch.adaptive": [0.5, 0.3],
        "switch.decade.-3": [0.7, 0.0],
        "switch.decade.-5": [0.3, 0.0],
        "switch.decade.-4": [0.0, 0.9],
        "switch.zero": [0.0, 0.1],
    }


def test_small_ends_are_drawn_as_one():
    """The decades in between stay, however small: a band may not swallow its neighbours' edges."""
    shares = {-9: 0.004, -8: 0.005, -7: 0.3, -5: 0.6, -3: 0.085, -2: 0.006}
    curves = {f"switch.decade.{k}": [share] for k, share in shares.items()} | {"switch.adaptive": [0.5]}
    found = bands(curves)
    assert [label for label, _ in found] == [
        "1e-9 to 1e-7",
        "1e-7 to 1e-6",
        "1e-6 to 1e-5",
        "1e-5 to 1e-4",
        "1e-4 to 1e-3",
        "1e-3 to 1e-2",
        "1e-2 to 1e-1",
    ]
    assert sum(share for _, (share,) in found) == pytest.approx(1)


def test_the_picture(tmp_path, capsys):
    path = write(tmp_path, REPORTS)
    assert main(["switch", str(path)]) == 0
    assert "2 reports drawn" in capsys.readouterr().out
    svg = (tmp_path / "switch.svg").read_text()
    for words in ("1e-5 to 1e-4", "at most delta: momentum SGD", "step"):
        assert words in svg
    first = (tmp_path / "switch.svg").read_bytes()
    main(["switch", str(path)])
    assert (tmp_path / "switch.svg").read_bytes() == first
    assert main(["switch", str(path), "--out", str(tmp_path / "a.png")]) == 0
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("reports", "more", "says"),
    [
        ([], [], "is empty: the monitor has not come to its first report"),
        ([{"loss": 1}], [], "line 1 is no report of a SwitchMonitor"),
        (REPORTS, ["--prefix", "other"], "line 1 is no report of a SwitchMonitor"),
        (REPORTS, ["--out", "a.txt"], "a picture's name ends in .svg, .png or .pdf"),
    ],
)
def test_misuse_is_a_sentence(tmp_path, capsys, reports, more, says):
    with pytest.raises(SystemExit) as stopped:
        main(["switch", str(write(tmp_path, reports)), *more])
    assert stopped.value.code == 2
    assert says in capsys.readouterr().err


def test_a_file_that_is_not_there(tmp_path, capsys):
    assert main(["switch", str(tmp_path / "none.jsonl")]) == 1
    assert "none.jsonl" in capsys.readouterr().err
