"""Loads what orders modules for verify commands, and then the `sitecustomize` that would have been loaded."""

import sys

import rollcage_imports

sys.path[:] = [entry for entry in sys.path if entry != "/opt/rollcage/verify/python"]
sys.path_importer_cache.pop("/opt/rollcage/verify/python", None)
own = sys.modules.pop("sitecustomize")
try:
    import sitecustomize
except ImportError as error:
    sys.modules["sitecustomize"] = own
    if error.name != "sitecustomize":
        raise
