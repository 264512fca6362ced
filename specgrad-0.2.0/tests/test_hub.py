"""The folder for the library ``kernels`` of Hugging Face, loaded by itself and by that library."""

from __future__ import annotations

import importlib.metadata
import json
import platform
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
LIBRARY = sorted((ROOT / "specgrad_kernels").glob("_kernels*.so"))
# beside the package itself, whose operator has the same name in another namespace
CHECK = """
import specgrad_kernels, torch
hub = load()
assert hub.filter_grads_ is not specgrad_kernels.filter_grads_
assert hub.available_backends() == expected, hub.available_backends()
torch.manual_seed(0)
shapes = [(16, 3, 3, 3), (64, 64, 3, 3), (10_007,)]
for options in (dict(method="fft"), dict(method="lap"), dict(method="gaussian"),
                dict(method="centralize"), dict(method="l2"), dict(order="random:7")):
    grads = [torch.randn(shape) for shape in shapes]
    exact = [grad.double() for grad in grads]
    hub.filter_grads_(grads, **options)
    specgrad_kernels.filter_grads_(exact, backend="torch", **options)
    for one, other in zip(grads, exact, strict=True):
        assert (one.double() - other).norm() <= 1e-5 * other.norm(), options
model = torch.nn.Conv2d(3, 8, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
hub.FilterPlan.for_model(model).attach(optimizer)
model(torch.randn(2, 3, 8, 8)).square().mean().backward()
optimizer.step()
assert abs(model.weight.grad.mean()) < 1e-6
grads = [torch.randn(2, 99)]
torch.vmap(lambda g: (hub.filter_grads_([g]), g)[1])(*grads)  # through the operator
assert grads[0].mean(1).abs().max() < 1e-6
"""
BY_ITSELF = """
import importlib.util, sys
def load():
    spec = importlib.util.spec_from_file_location("another_name", folder + "/__init__.py")
    module = sys.modules["another_name"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
"""
BY_KERNELS = """
from pathlib import Path
from kernels import get_local_kernel
def load():
    return get_local_kernel(Path(folder), backend="cpu")
"""


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("hub")
    command = [sys.executable, ROOT / ".ci" / "hub" / "write.py", folder]
    if LIBRARY:
        command += ["--library", f"{platform.machine()}={LIBRARY[0]}"]
    subprocess.run(command, check=True, capture_output=True)
    return folder


def run(code: str) -> None:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_no_variant_imports_the_installed_package(hub: Path) -> None:
    variants = sorted((hub / "build").iterdir())
    assert len(variants) == 5 + bool(LIBRARY)
    for variant in variants:
        for path in variant.rglob("*.py"):
            lines = path.read_text(encoding="utf-8").splitlines()
            starts = ("from specgrad_kernels", "import specgrad_kernels")
            assert [line for line in lines if line.strip().startswith(starts)] == [], path
        about = json.loads((variant / "metadata.json").read_text(encoding="utf-8"))
        stored = {p.relative_to(variant).as_posix() for p in variant.rglob("*") if p.is_file()}
        assert stored == {*about["digest"]["files"], "metadata.json"}


def test_a_copy_without_a_library_runs_beside_the_package(hub: Path) -> None:
    folder = str(hub / "build" / "torch-cpu")
    run(f"folder, expected = {folder!r}, ['torch']\n{BY_ITSELF}{CHECK}")


def test_kernels_loads_it(hub: Path) -> None:
    try:  # by its distribution: the folder tests/kernels has the name of its module
        importlib.metadata.version("kernels")
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("needs the package kernels, as make test-integrations has it")
    expected = ["cpp", "torch"] if LIBRARY else ["torch"]
    run(f"folder, expected = {str(hub)!r}, {expected}\n{BY_KERNELS}{CHECK}")
