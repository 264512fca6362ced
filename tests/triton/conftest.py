"""Makes the tools beside the tests importable, and skips all of it where Triton is missing."""

import importlib.util
import os
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
os.environ.setdefault("TRITON_DEFAULT_FP_FUSION", "1")

collect_ignore_glob = []
if importlib.util.find_spec("triton") is None:
    collect_ignore_glob.append("*")


@pytest.fixture
def limit_grid(monkeypatch):
    """Lets a short signal take the shape of a long one."""

    from specgrad_kernels.backends.triton import design, launch

    def limit(columns, rows):
        monkeypatch.setattr(design, "MAX_COLUMNS", columns)
        monkeypatch.setattr(design, "MAX_ROWS", {False: rows, True: rows})
        forget()

    def forget():
        design.split_cells.cache_clear()
        design.plan_band.cache_clear()
        launch.forget()

    yield limit
    forget()
