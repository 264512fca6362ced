"""Steps replayed as CUDA graphs, by a recorder on the CPU: the same bits as eager steps."""

import dataclasses

import pytest
import specgrad_data
import torch
from pretended import DEVICE, second_gpu
from recorder import CountedLaunches, RecordedGraph
from representatives import only
from specgrad_fl import building, machine, methods, models, training
from specgrad_fl.client import ClientRunner, Training
from specgrad_fl.config import Config
from specgrad_fl.methods import METHODS
from specgrad_fl.samples import Format, Samples
from specgrad_fl.vectors import SharedVectors, private

SETTINGS = {"filter": "fft", "filter_backend": "torch", "batch_size": 64, "active": 2, "rounds": 2}


def check_equal(made, expected):
    assert torch.equal(made.board.weights, expected.board.weights)
    for name, rows in expected.board.states.items():
        assert torch.equal(made.board.states[name], rows)
    for key in ("train_loss", "test_loss", "validation_loss"):
        assert [r.get(key) for r in made.records] == [r.get(key) for r in expected.records]


@pytest.fixture
def both(monkeypatch, play):
    """A run on a GPU that records and replays, equal to the bit to the run on the CPU."""

    def run(**settings):
        settings = {"eval_batch": 1000, **SETTINGS, **settings}
        expected = play(**{**settings, "workers": 1})
        with second_gpu(monkeypatch) as gpu:
            made = play(device="cuda:1", **settings)
        check_equal(made, expected)
        return gpu, [sentence for record in made.records for sentence in record["steps"]]

    return run


@pytest.mark.parametrize("method", only(["feddyn"], METHODS))
def test_every_method_is_replayed(both, method):
    gpu, steps = both(method=method)
    assert steps == ["6 replayed as CUDA graphs, 2 eager: their batches are not full"] * 2
    # once in each of two rounds, or for each of two clients where the step depends on the client
    assert len(gpu.graphs) == (4 if method == "feddyn" else 2)
    assert sum(graph.replays for graph in gpu.graphs) == 12


SETTINGS_WITH_GRAPHS = [
    {"momentum": 0.9, "nesterov": True},
    {"momentum": 0.9, "momentum_place": "before", "filter": "centralize"},
    {"clip_scope": "corrected", "clip": 0.5, "method": "fedprox", "filter": "fft-centralize"},
    {"validation": 0.2, "filter": "none", "epochs_range": "1-3"},
    {"channels_last": False, "filter_backend": "loop"},
    {"workers": 2},
]


@pytest.mark.parametrize("settings", only(SETTINGS_WITH_GRAPHS[2:3], SETTINGS_WITH_GRAPHS), ids=str)
def test_settings_are_replayed(both, settings):
    gpu, steps = both(**settings)
    assert gpu.streams == settings.get("workers", 1)
    assert all(graph.replays for graph in gpu.graphs)
    assert not any(" 0 replayed" in f" {sentence}" for sentence in steps)


def test_augmentation_is_replayed(monkeypatch, both):
    digits = dataclasses.replace(specgrad_data.load("digits"), augment_pad=2, flip=True)
    monkeypatch.setattr(specgrad_data, "load", lambda name: digits)
    gpu, _ = both()
    assert len(gpu.graphs) == 2


def test_a_resumed_run_replays_the_same_bits(monkeypatch, small, tmp_path):
    config = small(device="cuda:1", method="scaffold", **SETTINGS)

    def stop(record, config):
        if record["round"] == 1:
            raise KeyboardInterrupt

    with second_gpu(monkeypatch) as gpu:
        whole = training.train(config, tmp_path / "whole")
        with pytest.raises(KeyboardInterrupt):
            training.train(config, tmp_path / "parts", watch=stop)
        parts = training.resume(tmp_path / "parts")
    assert [graph.replays for graph in gpu.graphs] == [6] * 4
    assert parts.last_path.read_bytes() == whole.last_path.read_bytes()


def test_several_devices_have_a_process_each(play):
    expected, made = play(**SETTINGS), play(**SETTINGS, device="cpu,cpu")
    assert made.executor.processes == 2
    check_equal(made, expected)


def test_adam_is_left_eager_and_said_to_be(both):
    gpu, steps = both(optimizer="adam", lr=0.001)
    assert not gpu.graphs
    assert steps == ["0 replayed as CUDA graphs, 8 eager: Adam counts its steps on the host"] * 2


def test_weights_that_are_sent_in_every_call_are_left_eager(both):
    """The averages of the backend ``torch``; those of Triton have their tables on the device."""
    with pytest.warns(UserWarning, match="the host waits while a graph is captured"):
        _, steps = both(filter="lap")
    assert steps[1].startswith("0 replayed as CUDA graphs, 8 eager: a step cannot be captured")


def test_random_numbers_are_left_eager(monkeypatch, both):
    def noisy_relu(x, inplace=False):
        return x.clamp(min=0) * torch.rand(())

    monkeypatch.setattr(torch.nn.functional, "relu", noisy_relu)
    with pytest.warns(UserWarning, match="the model draws random numbers"):
        gpu, steps = both(rounds=1)
    assert not gpu.graphs
    assert "8 eager: the model draws random numbers" in steps[0]


class CountsItself(methods.Method):
    """A step that depends on a number of the host, which a graph freezes."""

    def correction(self, local):
        local.counted = getattr(local, "counted", 0) + 1
        return local.w * (0.001 * local.counted)


class AsksForSteps(methods.Method):
    def correction(self, local):
        return local.w * (0.001 * local.steps)


class ReadsAValue(methods.Method):
    def correction(self, local):
        return local.w * float(local.w.sum() > 0)


@pytest.mark.parametrize(
    ("method", "warning"),
    [
        (
            CountsItself,
            r"differ from eager ones by up to [\de.-]+ in weights.*two eager trainings by 0;",
        ),
        (AsksForSteps, "asks for the number of steps"),
        (ReadsAValue, "a step cannot be captured .*the host waits while a graph is captured"),
    ],
)
def test_a_method_that_cannot_be_replayed_is_trained_eagerly(monkeypatch, both, method, warning):
    monkeypatch.setitem(METHODS, "own", method)
    with pytest.warns(UserWarning, match=warning):
        _, steps = both(method="own")
    assert steps[1].startswith("0 replayed as CUDA graphs, 8 eager: ")


def test_waits_of_a_round(monkeypatch, make_engine):
    """One for each of ten clients and one for the evaluation, whatever their number of steps."""
    with second_gpu(monkeypatch) as gpu:
        made = make_engine(
            device="cuda:1", **{**SETTINGS, "method": "scaffold", "active": 10, "clients": 10}
        )
        made.round(0)
        gpu.waited.clear()
        made.round(1)
    assert gpu.waited == ["an event"] * 10 + ["the current stream"]


@pytest.fixture
def resnet20():
    """A runner of one client with 100 samples of CIFAR's shape, augmented."""
    kind = Format((3, 32, 32), (0.5,) * 3, (0.2,) * 3, pad=4, flip=True, channels_last=False)
    shape = (100, 32, 32, 3)
    pixels = torch.randint(256, shape, dtype=torch.uint8, generator=torch.Generator())
    labels = torch.arange(100) % 10
    arrays = {"train_x": pixels, "train_y": labels, "test_x": pixels[:1], "test_y": labels[:1]}

    def make(device="cpu"):
        config = Config(model="resnet20", clients=1, active=1, device=device)
        flat = building.build_model(building.Blueprint(config, kind, models.Inputs(10, 3, 32)))
        counts = torch.zeros(1, 10, dtype=torch.int64)
        federation = methods.Federation(torch.tensor([100]), counts, counts[0], flat.size, ())
        board = SharedVectors(private(SharedVectors.layout(flat, 1, (), ())))
        board.weights.copy_(flat.weights)
        samples = Samples(kind, arrays, machine.device_of(config))
        method = methods.build("fedavg", {}, federation)
        return ClientRunner(config, flat, samples, {0: torch.arange(100)}, method, board)

    return make


FILTER_LAUNCHES = 3  # of ResNet-20, see tests/triton


def test_launches_of_an_eager_step(monkeypatch, resnet20):
    counted = []
    step = Training.step

    def counting(*args):
        with CountedLaunches() as calls:
            done = step(*args)
        counted.append(calls.kernels + FILTER_LAUNCHES)
        return done

    monkeypatch.setattr(Training, "step", counting)
    resnet20().train(0, 0.1, [0], [0])
    assert len(counted) == 2
    assert max(counted) <= 330


def test_launches_of_a_replayed_step(monkeypatch, resnet20):
    """A copy of what was drawn, and the graph."""
    with second_gpu(monkeypatch) as gpu:
        runner = resnet20("cuda:1")
        counted = []
        replay = runner.graphs.replay

        def counting(*args):
            before = sum(graph.replays for graph in gpu.graphs)
            with CountedLaunches() as calls:
                done = replay(*args)
            counted.append(calls.kernels + sum(graph.replays for graph in gpu.graphs) - before)
            return done

        runner.train(0, 0.1, [0], [0])
        monkeypatch.setattr(runner.graphs, "replay", counting)
        runner.train(0, 0.1, [0], [0])
    assert counted == [2, 2]


def recorded(work, *static):
    graph = RecordedGraph()
    graph.capture_begin()
    try:
        work(*static)
    finally:
        graph.capture_end()
    return graph


class TestRecorder:
    """Refusals of the recorder."""

    @pytest.fixture
    def there(self, monkeypatch):
        with second_gpu(monkeypatch):
            yield torch.arange(4.0, device=DEVICE)

    def test_a_capture_changes_nothing_and_a_replay_does(self, there):
        graph = recorded(lambda x: x.mul_(2).add_(x.sin()), there)
        assert there.tolist() == [0, 1, 2, 3]
        graph.replay()
        expected = 2 * torch.arange(4.0)
        assert torch.equal(there.cpu(), expected + expected.sin())

    @pytest.mark.parametrize(
        "work",
        [
            lambda x: x.sum().item(),
            lambda x: x.nonzero(),
            lambda x: x[x > 1],
            lambda x: x.mul_(torch.tensor([1.0, 2, 3, 4]).to(DEVICE)),
            lambda x: x.copy_(torch.ones(4)),
            lambda x: torch.nn.functional.dropout(x),
            lambda x: torch.cuda.synchronize(),
        ],
    )
    def test_what_a_capture_forbids(self, there, work):
        with pytest.raises(RuntimeError, match="while a graph is captured"):
            recorded(work, there)

    def test_freed_memory(self, there):
        others = [there + 1]
        graph = recorded(lambda x: x.add_(others[0]), there)
        graph.replay()
        others.clear()
        with pytest.raises(RuntimeError, match="freed after the capture"):
            graph.replay()

    def test_memory_of_the_graph_holds_nothing_before_a_replay(self, there):
        kept = []
        graph = recorded(lambda x: kept.append(x.exp()), there)
        graph._calls.clear()
        graph.replay()
        assert kept[0].isnan().all()
