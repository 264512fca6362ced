"""Bad inputs: exit code 2, one sentence that names the fault, no trace, no file lost or made."""

from __future__ import annotations

import hashlib
import io
import json
import zipfile
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from specgrad_fl import cli, storage
from specgrad_fl.errors import RunError

MODULE = """
import torch
from torch import nn
from specgrad_fl.methods import Method

def pair(num_classes):
    class Pair(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(64, num_classes)
        def forward(self, x):
            return self.layer(x.flatten(1)), x
    return Pair()

def lazy(num_classes):
    return nn.Sequential(nn.Flatten(), nn.LazyLinear(num_classes))

def raising(num_classes):
    raise KeyError("weights.pt")

def integer(num_classes):
    return 3

def frozen(num_classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, num_classes)).requires_grad_(False)

def half(num_classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, num_classes)).half()

def stumbling(num_classes):
    class Stumbling(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(64, num_classes)
        def forward(self, x):
            raise LookupError("no")
    return Stumbling()

class Unfinished(Method):
    def finish(self, local):
        raise ZeroDivisionError("no steps")

class Odd(Method):
    def aggregate(self, round, server):
        return server["velocity"]

class Silent(Method):
    def aggregate(self, round, server):
        return None

class Short(Method):
    def aggregate(self, round, server):
        return round.start[:3]

class Crooked(Method):
    def correction(self, local):
        return torch.zeros(3)

def arrays():
    raise OSError("the share is not mounted")

def nothing():
    return None

number = 3
"""


def arrays(**changes):
    rng = np.random.default_rng(0)
    found = {
        "x_train": rng.integers(0, 256, (40, 8, 8, 1), dtype=np.uint8),
        "y_train": np.arange(40) % 4,
        "x_test": rng.integers(0, 256, (8, 8, 8, 1), dtype=np.uint8),
        "y_test": np.arange(8) % 4,
    }
    return {**found, **changes}


def first(count):
    return np.random.default_rng(0).integers(0, 256, (count, 3, 16, 16), dtype=np.uint8)


NPZ = {
    "channels.npz": arrays(x_train=first(40), x_test=first(8)),
    "strange_labels.npz": arrays(y_test=np.array([0, 1, 2, 3, 9, 1, 1, 1])),
    "one_class.npz": arrays(y_train=np.zeros(40, np.int64), y_test=np.zeros(8, np.int64)),
    "floats.npz": arrays(x_train=np.zeros((40, 8, 8, 1))),
    "sizes.npz": arrays(x_test=np.zeros((8, 9, 9, 1), np.uint8)),
    "text_labels.npz": arrays(y_train=np.array(["a"] * 40)),
    "one_hot.npz": arrays(y_train=np.eye(4, dtype=np.int64)[np.arange(40) % 4]),
    "incomplete.npz": {"x_train": np.zeros(3)},
    "gaps.npz": arrays(y_train=np.arange(40) * 1000),
}

TRAIN = ["train", "--workers=1", "--rounds=1", "--clients=4", "--active=2"]
CASES: list[tuple[list[str], str]] = [
    (["--machine-option=threads=100000"], "--machine-option threads is 100000; the most is 1024"),
    (["--machine-option=threads=0"], "--machine-option threads is 0; the least is 1"),
    (["--validation=1"], "validation is 1.0; the most is 0.9"),
    (["--validation=-0.1"], "validation is -0.1; the least is 0"),
    (["--validation=0.0001"], "less than one sample of the largest client"),
    (
        ["--participation-option=dropout=1"],
        "--participation-option dropout is 1.0; the most is 0.99",
    ),
    (
        ["--participation-option=epochs_range=5"],
        "epochs_range is '5'; write the least and the most",
    ),
    (["--participation-option=epochs_range=5-1"], "epochs_range is '5-1'"),
    (["--momentum=1"], "momentum is 1.0; the most is 0.999"),
    (["--optimizer=adamw"], "optimizer is 'adamw'; did you mean 'adam'?"),
    (["--optimizer=adam", "--method=scaffold"], "scaffold takes the mean of a client's gradients"),
    (["--lr-schedule=linear"], "lr_schedule is 'linear'; choose one of cosine, decay, steps"),
    (["--optimizer-option=lr_step=0"], "--optimizer-option lr_step is 0; the least is 1"),
    (["--learning-rate=0.1"], "did you mean '--lr'?"),
    (["--num-clients=3"], "did you mean '--clients'?"),
    (["--roundz=3"], "did you mean '--rounds'?"),
    (["--xyzzy=3"], "unknown argument '--xyzzy=3'; see specgrad-fl train --help\n"),
    (["--mu", "0.1"], "it is an option of fedprox: write --option mu=0.1\n"),
    (["--window=25"], "an option of the filter: write --filter-option window=25\n"),
    (["--dataset=own.npz"], "your own data are written npz:own.npz\n"),
    (["--dataset=all.parquet"], "your own data are written parquet:all.parquet\n"),
    (["--dataset=CIFAR-10"], "there is no data set 'CIFAR-10'; did you mean 'cifar10"),
    (["--model=nets.py"], "write nets:NAME, where NAME is the factory in nets.py\n"),
    (["--model=nets.py:net"], "model 'nets.py:net' names a file; write nets:net\n"),
    (["--model=ResNet20"], "did you mean 'resnet20'?"),
    (["--filter=FFT"], "filter is 'FFT'; did you mean 'fft'?\n"),
    (["--method=FedAvg"], "there is no method 'FedAvg'; did you mean 'fedavg'?"),
    (["--ratio=5"], "ratio is 5.0; the most is 1 (0.05 means 5 %)\n"),
    (["--validation=10"], "the most is 0.9 (0.1 means 10 %)\n"),
    (["--lr=nan"], "lr must be a finite number"),
    (["--lr=0"], "lr is 0.0; it must be more than 0"),
    (["--lr-decay=0"], "lr_decay is 0.0; it must be more than 0"),
    (["--lr=fast"], "argument --lr: invalid float value: 'fast'"),
    (["--rounds=0"], "rounds is 0; the least is 1"),
    (["--rounds=1e3"], "argument --rounds: invalid int value"),
    (["--seed=-1"], "seed is -1; the least is 0"),
    (["--active=9"], "active is 9, and there are 4 clients"),
    (["--clients=0"], "clients"),
    (["--clients=100000"], "more than the 1438 training samples"),
    (["--alpha=0"], "alpha is 0.0; choose a positive number"),
    (["--partition=natural"], "does not say who wrote which sample"),
    (["--partition=dirichelt"], "did you mean 'dirichlet'?"),
    (["--batch-size=0"], "batch_size is 0; the least is 1"),
    (["--method=fedprx"], "there is no method 'fedprx'; did you mean 'fedprox'?"),
    (["--model=resnet9"], "there is no model 'resnet9'; did you mean 'resnet8'?"),
    (["--model=textcnn"], "model 'textcnn' does not take the samples of digits"),
    (["--model=torch.nn:Identity"], "returns shape (2, 1, 8, 8) for 2 samples"),
    (["--model=.a:net"], "model '.a:net' is no module:name"),
    (["--model-option=stem=null"], "model_options gives stem the value None"),
    (["--model-option=depth=3"], "has no option 'depth'"),
    (["--option=mu"], "an option is written key=value, such as mu=0.01; got 'mu'"),
    (["--option=mu=1"], "method 'fedavg' has no option 'mu'; it has none"),
    (["--method=fedprox", "--option=mu=big"], "'mu' of 'fedprox' must be a number; got 'big'"),
    (["--method=fedawa", "--option=server_lr=-1"], "option 'server_lr' of 'fedawa' is -1"),
    (["--filter=fftt"], "fftt"),
    (["--ratio=1.5", "--filter=fft"], "ratio is 1.5; the most is 1"),
    (["--filter=fft", "--filter-select=("], "filter 'fft' cannot be used"),
    (["--filter=fft", "--filter-select=nothing"], "filter"),
    (["--filter=fft", "--filter-option=backend=quantum"], "backend must be one of"),
    (["--filter=fft", "--filter-option=order=99"], "order must permute the axes"),
    (["--filter=fft", "--ratio=1"], "ratio must lie in"),
    (["--device=cuda:99"], "device 'cuda:99' cannot be used"),
    (["--device=toaster"], "device 'toaster' cannot be used"),
    (["--device=meta"], "device 'meta' cannot be used"),
    (["--data-root=/nowhere", "--dataset=cifar10"], "no file of cifar10 is in /nowhere/cifar10"),
    (["--dataset=digitz"], "there is no data set 'digitz'; did you mean 'digits'?"),
    (["--dataset=npz:absent.npz"], "absent.npz does not exist or is incomplete"),
    (["--dataset=images:absent"], "absent does not exist or is incomplete"),
    (["--dataset=parquet:absent"], "absent does not exist or is incomplete"),
    (["--dataset=npz:members.npz"], "x_train in members.npz is no array"),
    (["--dataset=npz:text.npz"], "text.npz cannot be read"),
    (["--dataset=npz:channels.npz"], "write --data-option channels=first"),
    (["--dataset=npz:strange_labels.npz"], "include 9, which no training sample has"),
    (["--dataset=npz:one_class.npz"], "all training labels of one_class.npz are 0"),
    (["--dataset=npz:floats.npz"], "has dtype float64; images must be uint8"),
    (["--dataset=npz:sizes.npz"], "must have the same shape"),
    (["--dataset=npz:text_labels.npz"], "label"),
    (["--dataset=npz:one_hot.npz"], "has shape (40, 4) and dtype int64; expected one integer"),
    (["--dataset=npz:incomplete.npz"], "but not y_train, x_test, y_test"),
    (["--dataset=npz:gaps.npz"], "number the classes from 0 without gaps"),
    (["--dataset=npz:channels.npz", "--data-option=channels=middle"], "choose first or last"),
    (["--dataset=npz:channels.npz", "--data-option=colour=1"], "has no option 'colour'"),
    (["--dataset=nowhere_at_all:load"], "cannot import 'nowhere_at_all'"),
    (["--dataset=bad_code:nothing"], "returned NoneType; return a dictionary"),
    (["--dataset=bad_code:absent"], "bad_code has no 'absent'"),
    (["--model=bad_code:pair"], "returns tuple for 2 samples"),
    (["--model=bad_code:lazy"], "has a lazy layer, whose 1.weight has no size yet"),
    (["--model=bad_code:integer"], "returned int; a torch.nn.Module is needed"),
    (["--model=bad_code:number"], "bad_code:number"),
    (["--model=bad_code:frozen"], "the model has no trainable parameter"),
    (["--model=bad_code:half"], "does not take the samples of digits"),
    (["--model=bad_code:stumbling"], "does not take the samples of digits, of shape (1, 8, 8): no"),
    (["--method=bad_code:pair"], "is not a subclass of specgrad_fl.methods.Method"),
    (["--method=:x"], "is no module:name"),
    (["--method=bad_code:Silent"], "method 'bad_code:Silent' returned NoneType; it must return"),
    (["--method=bad_code:Short"], "'bad_code:Short' returned torch.float32 of shape [3]; it must"),
    (["--config=absent.toml"], "cannot read the configuration absent.toml"),
    (["--config=broken.toml"], "broken.toml is not a TOML file"),
    (["--config=table.toml"], "there is no table [train]; settings stand above all tables"),
    (["--config=alias.toml"], "unknown setting 'learning_rate'; did you mean 'lr'?"),
    (["--config=list.toml"], "epochs must be a whole number; got [1, 2]"),
    (["--config=latin.toml"], "latin.toml is not a TOML file"),
    (
        ["--config=options.toml", "--option=mu=1"],
        "options is 3 in options.toml; write a table [options]",
    ),
    (["--config=date.toml"], "model_options gives stem the value datetime.date(2020, 1, 1)"),
    (["--out=mine"], "mine is not empty: it holds notes.txt"),
    (["--out=notes.txt"], "notes.txt"),
]
TUNE = ["tune", "--workers=1", "--rounds=1", "--clients=4", "--active=2"]
OTHERS: list[tuple[list[str], str]] = [
    ([*TUNE, "--jobs=0"], "--jobs is 0; the least is 1"),
    ([*TUNE, "--ratio=0.1"], "specgrad-fl tune does not take this setting"),
    ([*TUNE, "--out=/proc/x"], "cannot write /proc/x"),
    ([*TUNE, "--grid=lr=0.1"], "at least two values"),
    ([*TUNE, "--grid=lr=a,b"], "write a setting and its values"),
    ([*TUNE, "--grid=nu=0.1,0.2", "--method=fedprox"], "has no option 'nu'"),
    ([*TUNE, "--measure=mean"], "there is no measure 'mean'"),
    ([*TUNE, "--decide=tset"], "decide is 'tset'; did you mean 'test'?"),
    ([*TUNE, "--validation=0"], "nothing is held out to decide by"),
    ([*TUNE, "--seeds=one"], "argument --seeds: 'one' is no list"),
    ([*TUNE, "--config=filtered.toml"], "tune works without one"),
    (["reproduce", "strategy"], "there is no experiment 'strategy'; did you mean 'strategies'?"),
    (["reproduce", "figure2"], "there is no experiment 'figure2'; choose one of table1, table2"),
    (["reproduce", "ratio", "--shard=3/2"], "write i/n with i from 1 to n"),
    (["reproduce", "ratio", "--measure=mean"], "there is no measure 'mean'"),
    (["reproduce", "ratio", "--preset=gpu"], "there is no preset 'gpu'"),
    (["reproduce", "ratio", "--seeds=a"], "argument --seeds: 'a' is no list"),
    (["reproduce", "orders", "--report-only", "--out=/proc/x"], "cannot write /proc/x"),
    (["diagnose", "nowhere", "--weights=1,2"], "--weights is about gradient files"),
    (["diagnose", "--gradients", "a", "b", "--smoothness=2"], "--smoothness is about a run"),
    (["reproduce", "ratio", "--jobs=0"], "--jobs is 0; the least is 1"),
    (["compare", "--vary=ratio"], "write a setting and its values"),
    (["compare", "--vary=rattio=1"], "did you mean 'ratio'?"),
    (["compare", "--vary=ratio=2"], "ratio is 2"),
    (["compare", "--vary=seed=1,2"], "it has a flag of its own"),
    (["compare", "--vary=rounds=few"], "rounds must be a whole number"),
    (["compare", "--seeds=a"], "argument --seeds"),
    (["compare", "--seeds=,"], "argument --seeds"),
    (["compare", "--methods=fedavg", "--option=mu=1"], "has no option 'mu'"),
    (["resume", "mine"], "mine is not a run directory"),
    (["resume", "mine", "--lr=0.5"], "'--lr=0.5'; specgrad-fl resume does not take this setting"),
    (["list", "nowhere"], "there is no folder nowhere"),
    (["plot", "mine"], "mine is not a run directory"),
    (["plot", "mine", "--out=notes.txt"], "notes.txt exists and specgrad-fl did not draw it"),
    (["plot", "mine", "--out=mine"], "cannot write"),
    (["compare", "--out=report"], "report holds compare.csv, which specgrad-fl compare did not"),
    (["data", "fetch", "digits"], "digits needs no download"),
    (["data", "fetc"], "there is no action 'fetc'; did you mean 'fetch'?\n"),
    (["data", "fetch", "digit"], "there is no data set 'digit'"),
    (["data", "fetch", "digits", "--rounds=2"], "data fetch does not take this setting"),
    (["resume"], "the following arguments are required: run"),
    ([], "the following arguments are required: COMMAND"),
    (["trian"], "there is no command 'trian'; did you mean 'train'?"),
]
FLOWER: list[tuple[list[str], str]] = [
    ([*TRAIN, "--engine=flowers"], "engine is 'flowers'; did you mean 'flower'?"),
    ([*TRAIN, "--engine=flower", "--engine-option=min_clients=3"], "min_clients is 3 and active 2"),
    ([*TRAIN, "--engine=flower", "--nodes=0"], "nodes is 0; the least is 1"),
    (["flower", "keys", "--host=a", "--nodes=0"], "nodes is 0; the least is 1"),
    (["flower", "shards", "--clients=2", "--nodes=3"], "nodes is 3, and there are 2 clients"),
]
if find_spec("flwr"):
    OTHERS += FLOWER


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A working directory with files of a user's, good and bad."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(__import__("sys").modules, "bad_code", raising=False)
    (tmp_path / "bad_code.py").write_text(MODULE)
    for name, contents in NPZ.items():
        np.savez(tmp_path / name, **contents)
    with zipfile.ZipFile(tmp_path / "members.npz", "w") as archive:
        for name in arrays():
            archive.writestr(name, "words")
    (tmp_path / "text.npz").write_text("words")
    (tmp_path / "broken.toml").write_text("rounds = \n")
    (tmp_path / "table.toml").write_text("[train]\nrounds = 3\n")
    (tmp_path / "alias.toml").write_text("learning_rate = 0.1\n")
    (tmp_path / "list.toml").write_text("epochs = [1, 2]\n")
    (tmp_path / "options.toml").write_text("options = 3\n")
    (tmp_path / "date.toml").write_text("[model_options]\nstem = 2020-01-01\n")
    (tmp_path / "filtered.toml").write_text('filter = "fft"\n')
    (tmp_path / "latin.toml").write_bytes(b'dataset = "\xe9"\n')
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / "report").mkdir()
    (tmp_path / "report" / "compare.csv").write_text("mine")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("mine")
    return tmp_path


def snapshot(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and path.suffix != ".pyc"
    }


def refused(arguments: list[str], capsys) -> str:
    assert cli.main(arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    return captured.err


def test_every_bad_input_is_one_sentence_and_changes_no_file(place, capsys):
    """One test for all, since they share the working directory and must leave it as it is."""
    before = snapshot(place)
    wrong = []
    for arguments, message in [(TRAIN + case, text) for case, text in CASES] + OTHERS:
        code = cli.main(arguments)
        said = capsys.readouterr()
        announced = ("run: ", "data: ")
        sentences = [line for line in said.err.splitlines() if not line.startswith(announced)]
        after = snapshot(place)
        good = code == 2 and not said.out and len(sentences) == 1 and message in said.err
        good = good and sentences[0].startswith("specgrad-fl: ")
        if not good or after != before:
            wrong.append(f"{arguments[-1:]}: {code} {said.err[:300]!r} {set(after) ^ set(before)}")
            before = after
    assert not wrong, "\n\n".join(wrong)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (
            ["--method=bad_code:Unfinished"],
            "method 'bad_code:Unfinished' failed in finish: ZeroDiv",
        ),
        (["--method=bad_code:Unfinished", "--workers=2"], "failed in finish: ZeroDivisionError"),
        (["--method=bad_code:Odd"], "method 'bad_code:Odd' failed in aggregate: KeyError"),
        (["--method=bad_code:Crooked"], "; if method 'bad_code:Crooked' made it, the trace shows"),
        (["--model=bad_code:raising"], "model 'bad_code:raising' cannot be built: KeyError"),
        (["--dataset=bad_code:arrays"], "dataset 'bad_code:arrays' failed: OSError: the share"),
    ],
)
def test_code_of_ones_own_is_named_before_its_trace(place, capsys, flags, message):
    said = refused([*TRAIN, *flags], capsys)
    sentence = next(line for line in said.splitlines() if line.startswith("specgrad-fl: "))
    assert message in sentence
    assert said.index(sentence) < said.index("Traceback")
    assert "bad_code.py" in said or "made it" in message
    assert not (place / "runs").exists() or not list((place / "runs").iterdir())


def test_a_read_only_disk_is_one_sentence(tmp_path, monkeypatch):
    def forbidden(*_, **__):
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(storage.os, "open", forbidden)
    monkeypatch.setattr(Path, "unlink", forbidden)
    with pytest.raises(RunError, match=r"cannot write .*file\.txt: Read-only file system"):
        storage.write_text(tmp_path / "file.txt", "text")


def test_settings_without_effect_are_named(place, capsys, monkeypatch):
    from specgrad_fl import training

    monkeypatch.setattr(training, "train", lambda *_: (_ for _ in ()).throw(RunError("stop")))
    flags = ["--partition=iid", "--alpha=1", "--ratio=0.1", "--nodes=2",
             "--optimizer-option=momentum_place=before"]  # fmt: skip
    said = refused([*TRAIN, *flags], capsys)
    for name, needs in (
        ("alpha", "partition=dirichlet"),
        ("ratio", "filter!=none"),
        ("nodes", "engine=flower"),
        ("--optimizer-option momentum_place", "momentum!=0.0"),
    ):
        assert f"specgrad-fl: {name} has no effect without {needs}\n" in said
    assert "partition has no effect" not in said


def test_fetching_what_is_there_says_so(tmp_path, monkeypatch, capsys):
    from specgrad_data import fetch
    from specgrad_data.catalog import ENTRIES, Entry, RemoteFile

    digest = hashlib.sha256(b"abc").hexdigest()
    file = RemoteFile("toy.bin", "http://localhost/toy.bin", digest, size=3)
    entry = Entry("toy", "a toy", files=(file,))
    monkeypatch.setitem(ENTRIES, "toy", entry)
    folder = tmp_path / "toy"
    assert not fetch.is_complete(entry, tmp_path)
    folder.mkdir()
    (folder / "toy.bin").write_bytes(b"abc")
    assert cli.main(["data", "fetch", "toy", f"--data-root={tmp_path}"]) == 0
    assert "was complete already" in capsys.readouterr().out


def test_damaged_metrics_are_named(place, capsys):
    run = place / "run"
    assert cli.main([*TRAIN, "--quiet", "--out=run"]) == 0
    capsys.readouterr()
    whole = json.loads((run / "metrics.jsonl").read_text())
    whole.pop("check")
    for changes in ({"seconds": 3}, {"train_loss": "x"}, {"memory_mib": None}, {"round": "a"}):
        (run / "metrics.jsonl").write_text(json.dumps({**whole, **changes}) + "\n")
        for command in (["plot", "run"], ["resume", "run"]):
            assert "metrics.jsonl is damaged" in refused(command, capsys)
        assert cli.main(["list", "."]) == 2
        assert "metrics.jsonl is damaged" in capsys.readouterr().out


class Tty(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.parametrize("width", ["20", "80", "100"])
def test_the_live_line_never_wraps(monkeypatch, width):
    from specgrad_fl import progress
    from specgrad_fl.config import Config

    record = {
        "round": 3, "train_loss": 1.0, "test_accuracy": 0.5, "filter_share": 0.1,
        "seconds": {"round": 1.0, "train": 0.8, "aggregate": 0.1, "evaluate": 0.1},
    }  # fmt: skip
    monkeypatch.setenv("COLUMNS", width)
    stream = Tty()
    progress.Terminal(stream, "[1/12] a method with a long name/fft/seed 0")(record, Config())
    line = stream.getvalue().removeprefix("\r\x1b[2K")
    assert len(line) < int(width)
    assert "\n" not in line


@pytest.mark.pictures
def test_pictures_show_single_points_and_whole_ticks(tmp_path, monkeypatch):
    from specgrad_fl import plots

    drawn = []
    monkeypatch.setattr(plots, "save", lambda figure, path, dpi=120: drawn.append(figure))
    records = [{"round": r, "train_loss": 1.0} for r in (1, 2)]
    records[-1]["test_accuracy"] = 0.5
    plots.curves(tmp_path / "x.png", {"one": records})
    plots.bands(tmp_path / "y.png", {"one": [records], "two": [records, records]})
    for figure in drawn:
        accuracy = figure.axes[0]
        assert all(line.get_marker() == "o" for line in accuracy.lines)
        assert all(float(tick).is_integer() for tick in accuracy.get_xticks())
    labels = [text.get_text() for text in drawn[1].axes[0].get_legend().get_texts()]
    assert labels == ["one (1 seed)", "two (2 seeds)"]
