"""These tests need TRITON_INTERPRET=1 from the start; ``test_interpreted.py`` runs them so."""

import os

INTERPRETING = os.environ.get("TRITON_INTERPRET") == "1"
collect_ignore_glob = [] if INTERPRETING else ["*"]

if INTERPRETING:
    from triton_tools.quicker import make_quicker

    make_quicker()
