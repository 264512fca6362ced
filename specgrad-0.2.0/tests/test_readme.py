"""Run every command and every snippet of the README, in an environment that it installed."""

import os
import re
import shlex
import shutil
import subprocess
import sys
import venv
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parent.parent


def blocks(page, language):
    text = (ROOT / page).read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


def commands():
    lines = "".join(blocks("README.md", "sh")).splitlines()
    return [line.split("#")[0].strip() for line in lines if line.split("#")[0].strip()]


FLOWER = "specgrad-fl train --engine flower --nodes 2 --clients 4 --active 2 --rounds 1"

# A command that sets up its own environment is run in this form instead.
SHORTER = {"make demo": "make --dry-run demo", "make test": "make --dry-run test"}
SNIPPETS = [
    (page, number)
    for page in ("README.md", "docs/index.md", "docs/op.md")
    for number in range(len(blocks(page, "python")))
]


@pytest.mark.parametrize(("page", "number"), SNIPPETS)
def test_snippets(page, number):
    exec(compile(blocks(page, "python")[number], f"{page}, snippet {number + 1}", "exec"), {})


def test_the_line_of_pytorch_is_what_fft_does():
    import torch

    from specgrad_kernels import filter_grads_

    names: dict = {}
    exec(next(b for b in blocks("README.md", "python") if "irfft" in b), names)
    filter_grads_([names["grad"]], method="fft", ratio=0.05)
    torch.testing.assert_close(names["grad"], names["filtered"], atol=2e-6, rtol=0)


def test_the_equivalent_snippet_is_equivalent():
    import torch

    from specgrad_kernels import filter_grads_

    names: dict = {}
    exec(next(b for b in blocks("docs/op.md", "python") if "filter_grads_reference" in b), names)
    grads = [torch.randn(64, 64, 3, 3), None, torch.randn(16, 3, 3, 3)]
    copies = [None if grad is None else grad.clone() for grad in grads]
    filter_grads_(grads, ratio=0.05)
    names["filter_grads_reference"](copies, ratio=0.05)
    torch.testing.assert_close(grads[0], copies[0], atol=2e-6, rtol=0)
    torch.testing.assert_close(grads[2], copies[2], atol=2e-6, rtol=0)


def test_result_configurations():
    from specgrad_fl.config import Config, check_names, read_toml

    settings = read_toml(ROOT / "docs" / "results" / "cifar10_resnet20.toml")
    check_names(settings)
    assert Config(**settings).model == "resnet20"


def copy_sources(folder):
    """A checkout in which nothing was built yet."""
    ignore = shutil.ignore_patterns(
        "*.so", "__pycache__", "*.egg-info", ".git", ".venv*", "build", "dist", "runs", ".*_cache"
    )
    return Path(shutil.copytree(ROOT, folder, ignore=ignore))


def required(*extras):
    """The distributions that `pip install ".[extras]"` brings, of those that run these tests."""
    found, wanted = {}, [("specgrad", frozenset(extras))]
    seen = set()
    while wanted:
        name, asked = wanted.pop()
        if (name, asked) in seen:
            continue
        seen.add((name, asked))
        distribution = metadata.distribution(name)
        found[name] = distribution
        for text in distribution.requires or ():
            requirement = Requirement(text)
            marker = requirement.marker
            if marker is None or any(marker.evaluate({"extra": each}) for each in (*asked, "")):
                wanted.append((requirement.name, frozenset(requirement.extras)))
    del found["specgrad"]
    return found.values()


class Environment:
    """A new environment with what an install of ours brings, borrowed from where the tests run."""

    def __init__(self, folder, *extras):
        self.folder = folder
        venv.create(folder, symlinks=True)
        (site,) = folder.glob("lib/python*/site-packages")
        for distribution in required(*extras):
            for top in {file.parts[0] for file in distribution.files or ()} - {"..", "__pycache__"}:
                if not (site / top).exists():
                    (site / top).symlink_to(distribution.locate_file(top))
        inherited = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
        self.variables = {**inherited, "PATH": f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}"}

    def run(self, command, cwd, **variables):
        return subprocess.run(
            shlex.split(command) if isinstance(command, str) else command,
            cwd=cwd,
            env={**self.variables, **variables},
            capture_output=True,
            text=True,
            check=False,
        )

    def install(self, sources, **variables):
        pip = [sys.executable, "-m", "pip", "--python", self.folder / "bin" / "python", "install"]
        pip += ["--quiet", "--no-build-isolation", "--no-deps", sources]
        # the build needs setuptools and pybind11, which an install does not bring
        builds = {"PYTHONPATH": os.pathsep.join(p for p in sys.path if "site-packages" in p)}
        done = self.run(pip, sources, **builds, **variables)
        assert done.returncode == 0, done.stderr


def ready_library():
    """The operator's library that these tests use, for installs that need not compile it again."""
    found = sorted((ROOT / "specgrad_kernels").glob("_kernels*.so"))
    return {"SPECGRAD_KERNELS": str(found[0])} if found else {}


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """A checkout, and a new environment into which it was installed."""
    folder = tmp_path_factory.mktemp("installed")
    checkout = copy_sources(folder / "checkout")
    fresh = Environment(folder / "env", "fl")
    fresh.install(checkout, SPECGRAD_BUILD_EXT="1", **ready_library())
    shutil.rmtree(checkout / "build", ignore_errors=True)
    yield checkout, fresh
    shutil.rmtree(folder)


@pytest.mark.slow
def test_commands_after_an_install_inside_and_outside_of_the_checkout(installed, tmp_path):
    """Those of `python -m` in both places: inside, the checkout hides what was installed."""
    checkout, fresh = installed
    outside = tmp_path / "outside"
    outside.mkdir()
    for command in dict.fromkeys(SHORTER.get(c, c) for c in commands()):
        if command.startswith("pip install"):
            continue  # what these install is what the others are run with
        places = [checkout, outside] if command.startswith("python") else [outside]
        if command.startswith("make"):
            places = [checkout]
        for place in places:
            done = fresh.run(command, place)
            assert done.returncode == 0, (command, place, done.stdout, done.stderr)
            if command == "python -m specgrad_kernels":
                assert "cpp      available" in done.stdout, (place, done.stdout)
    refused = fresh.run(FLOWER, outside)
    assert refused.returncode == 2
    assert refused.stderr.startswith("specgrad-fl: this needs Flower, which is not ")
    assert 'pip install ".[fl,flower]"' in refused.stderr
    with (checkout / "specgrad_kernels" / "spec.py").open("a") as file:
        file.write("# changed\n")
    report = fresh.run("python -m specgrad_kernels", checkout).stdout
    assert f"the source tree {checkout} hides the build in {fresh.folder}" in report
    assert "pip install --no-build-isolation -e ." in report


@pytest.mark.slow
def test_install_without_native_code(tmp_path):
    """pip install works with no compiler, and the package runs on plain PyTorch; the trainer,
    which needs an extra, says which."""
    fresh = Environment(tmp_path / "env")
    fresh.install(copy_sources(tmp_path / "source"), SPECGRAD_BUILD_EXT="0")
    code = "import specgrad_kernels as s; print(s.__file__, s.available_backends())"
    shown = fresh.run(["python", "-c", code], tmp_path).stdout
    assert str(fresh.folder) in shown
    assert "'torch'" in shown
    assert "'cpp'" not in shown
    refused = fresh.run("specgrad-fl train --rounds 3 --filter fft", tmp_path)
    assert refused.returncode == 2
    assert refused.stderr.startswith("specgrad-fl: safetensors is not installed; ")
    assert 'pip install ".[fl]"' in refused.stderr
    assert not (tmp_path / "runs").exists()


@pytest.mark.slow
def test_an_installed_package_has_every_file(installed):
    _, fresh = installed
    (site,) = fresh.folder.glob("lib/python*/site-packages")
    built = {path.name.split(".")[0] for path in site.glob("specgrad_kernels/*.so")}
    assert built == {"_kernels", "_cpu"}
    for base in (ROOT / "specgrad_kernels", *(ROOT / "python").iterdir()):
        for path in [*base.rglob("*.py"), *base.rglob("py.typed")]:
            assert (site / path.relative_to(base.parent)).is_file(), path


@pytest.mark.exhaustive
def test_an_installed_package_has_type_information(installed, tmp_path):
    _, fresh = installed
    script = tmp_path / "users.py"
    script.write_text(
        "import torch\n"
        "from specgrad_kernels import FilterPlan, FilterSpec\n"
        "plan: FilterPlan = FilterPlan.for_model(torch.nn.Linear(3, 3), FilterSpec(ratio=0.1))\n"
        "plan.filter_grads_(3)\n"
        "wrong: int = plan.describe()\n"
    )
    mypy = [sys.executable, "-m", "mypy", "--python-executable", fresh.folder / "bin" / "python"]
    (tmp_path / "mypy.ini").write_text("[mypy]\n[mypy-torch.*]\nfollow_imports = skip\n")
    mypy += ["--config-file", tmp_path / "mypy.ini", "--cache-dir", tmp_path / "cache"]
    said = fresh.run([*mypy, script], tmp_path).stdout
    assert 'users.py:4: error: Argument 1 to "filter_grads_"' in said, said
    assert 'users.py:5: error: Incompatible types in assignment (expression has type "str"' in said
    assert "Found 2 errors in 1 file" in said, said
