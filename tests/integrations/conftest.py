"""Run by ``make test-integrations``, in an environment that has the packages."""

from importlib.util import find_spec

if find_spec("lightning") is None:
    collect_ignore_glob = ["*.py"]
