"""Run by ``make test-integrations``, in an environment that has the packages."""

from importlib.util import find_spec

import torch

collect_ignore_glob = [] if find_spec("lightning") else ["test_recipes.py", "test_timm.py"]
if find_spec("ray") is None:
    collect_ignore_glob.append("test_simulation.py")

# timm needs torchvision's Python part alone, and Lightning imports it where it is; beside a torch
# that its compiled part was not built for, these two operators are missing
if find_spec("torchvision"):
    torchvision = torch.library.Library("torchvision", "FRAGMENT")
    for name in ("nms", "qnms"):
        if not hasattr(torch.ops.torchvision, name):
            torchvision.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
