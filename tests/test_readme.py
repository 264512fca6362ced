"""What the README shows is what happens: every command and every snippet in it is run."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
BIN = Path(sys.executable).parent


def blocks(language):
    return re.findall(rf"^```{language}\n(.*?)^```", README, re.MULTILINE | re.DOTALL)


def commands():
    lines = "".join(blocks("sh")).splitlines()
    return [line.split("#")[0].strip() for line in lines if line.split("#")[0].strip()]


CIFAR = (
    "specgrad-fl compare --config docs/results/cifar10_resnet20.toml --filters none,fft --seeds 0"
)

FLOWER = "specgrad-fl train --engine flower --nodes 2 --clients 4 --active 2 --rounds 1"

PAPER = "specgrad-fl reproduce strategies layers orders ratio spectral-bias cka time --preset cpu"

# A command that sets up its own environment or takes minutes is run in this form instead.
SHORTER = {
    "make demo": "python -m specgrad_fl.demo --help",
    "make test": "make --dry-run test",
    "make bench": "python -m benchmarks.run --help",
    CIFAR: "specgrad-fl list",  # an hour; test_result_configurations reads its file
    FLOWER: "specgrad-fl flower --help",  # fl/flower/test_processes.py runs its like
    PAPER: f"{PAPER} --report-only",  # hours; fl/paper runs every experiment at smoke size
    "pip install .": None,  # test_install_* below
    "pip install --no-build-isolation .": None,
}


@pytest.mark.parametrize("number", range(len(blocks("python"))))
def test_snippets(number):
    exec(compile(blocks("python")[number], f"README.md, snippet {number + 1}", "exec"), {})


def test_the_equivalent_snippet_is_equivalent():
    import torch

    from specgrad_kernels import filter_grads_

    names: dict = {}
    exec(next(b for b in blocks("python") if "filter_grads_reference" in b), names)
    grads = [torch.randn(64, 64, 3, 3), None, torch.randn(16, 3, 3, 3)]
    copies = [None if grad is None else grad.clone() for grad in grads]
    filter_grads_(grads, ratio=0.05)
    names["filter_grads_reference"](copies, ratio=0.05)
    torch.testing.assert_close(grads[0], copies[0], atol=2e-6, rtol=0)
    torch.testing.assert_close(grads[2], copies[2], atol=2e-6, rtol=0)


@pytest.mark.slow
@pytest.mark.parametrize("command", [c for c in commands() if SHORTER.get(c, c)])
def test_commands(command, tmp_path):
    run = SHORTER.get(command, command)
    folder = ROOT if run.startswith("make") or "benchmarks" in run else tmp_path
    environment = {**os.environ, "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}"}
    subprocess.run(shlex.split(run), cwd=folder, env=environment, check=True)


def test_result_configurations():
    from specgrad_fl.config import Config

    text = (ROOT / "docs" / "results" / "cifar10_resnet20.toml").read_text()
    names = {line.split(" = ")[0] for line in text.splitlines() if " = " in line}
    assert names <= set(Config.__dataclass_fields__)


@pytest.mark.slow
def test_install_without_native_code(tmp_path):
    """pip install works with no compiler, and the package runs on plain PyTorch."""
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-build-isolation"]
    install += ["--no-deps", "--target", str(tmp_path / "site"), str(copy_sources(tmp_path))]
    subprocess.run(install, env={**os.environ, "SPECGRAD_BUILD_EXT": "0"}, check=True)
    code = "import specgrad_kernels as s; print(s.__file__, s.available_backends())"
    shown = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": str(tmp_path / "site")},
        cwd=tmp_path,
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    assert str(tmp_path) in shown
    assert "'torch'" in shown
    assert "'cpp'" not in shown


@pytest.mark.slow
def test_install_builds_the_native_code(tmp_path):
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-build-isolation"]
    install += ["--no-deps", "--target", str(tmp_path / "site"), str(copy_sources(tmp_path))]
    subprocess.run(install, env={**os.environ, "SPECGRAD_BUILD_EXT": "1"}, check=True)
    built = {path.name.split(".")[0] for path in tmp_path.glob("site/specgrad_kernels/*.so")}
    assert built == {"_kernels", "_design"}


def copy_sources(folder):
    """The files of a source distribution, without what a build left behind."""
    import shutil

    target = folder / "source"
    target.mkdir()
    for name in ("setup.py", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, target / name)
    for name in ("csrc", "specgrad_kernels", "python"):
        ignore = shutil.ignore_patterns("*.so", "__pycache__", "*.egg-info")
        shutil.copytree(ROOT / name, target / name, ignore=ignore)
    return target
