"""Makes the tools beside the tests importable, and skips all of it where Triton is missing."""

import importlib.util
import os
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
os.environ.setdefault("TRITON_DEFAULT_FP_FUSION", "1")
# compiled code names the files that it was made from, and another checkout has others
_BUILT = Path(__file__).parents[2] / "build" / "triton"
os.environ.setdefault("TRITON_CACHE_DIR", str(_BUILT))

collect_ignore_glob = []
if importlib.util.find_spec("triton") is None:
    collect_ignore_glob.append("*")


@pytest.fixture
def limit_grid(monkeypatch):
    """Lets a short signal take the shape of a long one: these lines, and a middle."""

    from specgrad_kernels.backends.triton import coarse_grid

    def limit(lines, middles=coarse_grid.MIDDLE_LOGS):
        monkeypatch.setattr(coarse_grid, "LINE_LOGS", lines)
        monkeypatch.setattr(coarse_grid, "MIDDLE_LOGS", middles)
        monkeypatch.setattr(coarse_grid, "GOOD_COLUMNS", 0)
        forget()

    yield limit
    monkeypatch.undo()
    forget()


@pytest.fixture
def large_tiles(monkeypatch):
    """Larger tiles for the interpreter: its time goes with the number of steps, not their size."""

    from specgrad_kernels.backends.triton import targets

    monkeypatch.setattr(targets, "TILE_SAMPLES", 1 << 14)
    forget()
    yield
    monkeypatch.undo()
    forget()


def forget():
    """No plan from before the sizes changed."""

    from triton_tools.compare import forget_programs

    from specgrad_kernels.backends.triton import coarse_grid

    coarse_grid.plan_grid.cache_clear()
    forget_programs()
