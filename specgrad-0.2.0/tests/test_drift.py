"""The tutorial docs/drift.md: its commands and its code run, and what it says is so."""

import json
import re
import shlex
from pathlib import Path

import pytest
import torch

# test_docs.py parses its commands; the recorded numbers are those of an earlier run
pytestmark = pytest.mark.exhaustive

PAGE = (Path(__file__).parent.parent / "docs" / "drift.md").read_text()


@pytest.fixture(scope="module")
def walked(tmp_path_factory):
    """The folder after every block of the page has been run in it, and what was printed."""
    from specgrad_fl import cli

    folder = tmp_path_factory.mktemp("drift")
    threads = torch.get_num_threads()
    names: dict = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for language, block in re.findall(r"^```(sh|python)\n(.*?)^```", PAGE, re.M | re.S):
            if language == "python":
                exec(compile(block, "docs/drift.md", "exec"), names)
                continue
            for line in block.replace("\\\n", "").splitlines():
                program, *arguments = shlex.split(line)
                assert program == "specgrad-fl"
                assert cli.main(arguments) == 0
    torch.set_num_threads(threads)
    return folder


def diagnosis(folder):
    return json.loads((folder / "diagnosis.json").read_text())


def test_skewed_clients_disagree_more_and_at_lower_frequencies(walked):
    skewed, even = (diagnosis(walked / "runs" / name / "diagnosis") for name in ("skewed", "even"))
    assert skewed["bands"]["share"][0] > even["bands"]["share"][0] > 0.3
    for one, two in zip(skewed["rounds"], even["rounds"], strict=True):
        assert one["disagreement"] > two["disagreement"]
        assert one["mean_similarity"]["penultimate"] < two["mean_similarity"]["penultimate"]

    cosines = [sum(r["cosine_of_updates"] for r in each["rounds"]) for each in (skewed, even)]
    assert cosines[0] < cosines[1]


@pytest.mark.parametrize("name", ["skewed", "even"])
def test_shares_are_the_ones_printed(name, walked):
    shown = float(re.search(rf"{name}: (\d+\.\d)% in the lowest band", PAGE)[1]) / 100
    share = diagnosis(walked / "runs" / name / "diagnosis")["bands"]["share"][0]
    assert shown == pytest.approx(share, abs=0.02)


def test_low_frequencies_are_what_must_go(walked):
    left = diagnosis(walked / "runs" / "skewed" / "diagnosis")["left_after_filter"]
    assert max(left[name] for name in ("fft", "lap", "gaussian")) < 0.65
    assert min(left[name] for name in ("random", "fft_high", "order random")) > 0.9


def test_the_filter_meets_less_sharpness(walked):
    found = diagnosis(walked / "sharp")["rounds"][0]["sharpness"]
    told = re.search(r"no filter (\S+), fft (\S+), random (\S+)$", PAGE, re.M)
    for label, shown in zip(("no filter", "fft", "random"), told.groups(), strict=True):
        assert float(shown) == pytest.approx(found[label], rel=0.02)
    assert found["fft"] < 0.75 * found["no filter"] < 0.8 * found["random"]


def test_white_noise_is_recognised(walked):
    found = diagnosis(walked / "diagnosis")
    assert all(share == pytest.approx(0.1, abs=0.05) for share in found["bands"]["share"])
    ratios = [row["ratio"] for row in found["recommendation"]["layers"]]
    assert all(ratio == 0 or ratio > 0.4 for ratio in ratios)


def test_its_pictures_are_there(walked):
    pictures = re.findall(r"!\[.*?\]\((pictures/.*?)\)", PAGE)
    assert len(pictures) == 3
    for picture in pictures:
        assert (Path(__file__).parent.parent / "docs" / picture).is_file()
        made = [walked / Path(picture).name, walked / "runs/skewed/diagnosis" / Path(picture).name]
        assert any(path.is_file() for path in made)


def test_the_table_of_layers_is_the_one_printed(walked):
    rows = diagnosis(walked / "runs" / "skewed" / "diagnosis")["layers"]
    for row in rows:
        line = next(line for line in PAGE.splitlines() if line.split()[:1] == [row["layer"]])
        _, d, cutoff, band, kappa, _ = line.split()
        assert (d, cutoff) == (f"{row['d']:,}", str(row["cutoff"] or "-"))
        for shown, found in ((band, row["lowest_band"]), (kappa, row["kappa"])):
            if found is None:
                assert shown == "-"
            else:
                assert float(shown.rstrip("%")) == pytest.approx(100 * found, abs=2)
