"""Everything here needs a GPU and is skipped, with a reason, where there is none."""

import pytest
import torch


def pytest_collection_modifyitems(items):
    if torch.cuda.is_available():
        return
    here = __file__.rsplit("/", 1)[0]
    for item in items:
        if str(item.path).startswith(here):
            item.add_marker(pytest.mark.skip(reason="no GPU on this machine"))
