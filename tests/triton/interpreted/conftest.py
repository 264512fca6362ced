"""These tests need TRITON_INTERPRET=1 from the start; ``test_interpreted.py`` runs them so."""

import os

INTERPRETING = os.environ.get("TRITON_INTERPRET") == "1"
collect_ignore_glob = [] if INTERPRETING else ["*"]


def _patch_each_function_once():
    """The interpreter patches the language at every call of a device function: half the time."""
    from triton.runtime.interpreter import InterpretedFunction

    patching_call = InterpretedFunction.__call__
    patched = set()

    def call(self, *arguments, **named):
        if self.fn not in patched:
            patched.add(self.fn)
            return patching_call(self, *arguments, **named)
        return self.rewrite()(*arguments, **named)

    InterpretedFunction.__call__ = call


if INTERPRETING:
    _patch_each_function_once()
