"""The command line, ``gemmsmith`` and ``python -m gemmsmith`` alike.

A verb parses, calls one function of the package and prints. Verbs import what they need when they
run, so that ``--help`` is quick and all but ``run``, ``bench`` and ``demo`` work without torch.
"""

from __future__ import annotations

from gemmsmith.cli.app import main

__all__ = ["main"]
