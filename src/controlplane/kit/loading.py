"""
Loading a large part of the product into a process that stays.
"""

import gc
from importlib import import_module
from types import ModuleType


def load(name: str) -> ModuleType:
    """
    The module, imported with all it needs, while nobody looks for garbage: there is next to none, and looking again and again through
    what was just loaded costs a sixth of a start. What is loaded then is never looked through again.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        return import_module(name)
    finally:
        gc.freeze()
        if was_on:
            gc.enable()
