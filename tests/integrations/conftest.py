"""Run by ``make test-integrations``, in an environment that has the packages."""

from importlib.util import find_spec

collect_ignore_glob = [] if find_spec("lightning") else ["test_recipes.py", "test_timm.py"]
if find_spec("ray") is None:
    collect_ignore_glob.append("test_simulation.py")
