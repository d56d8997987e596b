"""Which settings and plugins pytest takes for tests of the verifier.

For tests below its directory these are what lies below it, and plugins that setup or the system has. Tests elsewhere have
whatever pytest finds.
"""

import inspect
import os
import sys

import rollcage_imports as own

NO_SETTINGS = os.path.join(os.path.dirname(os.path.abspath(own.__file__)), "none.ini")
# Whether tests of the verifier are among those that run.
is_strict = False


def is_tests(path):
    whole = os.path.realpath(str(path))
    return whole == own.TESTS or whole.startswith(own.TESTS + "/")


def follow(name, spec):
    """Has a module of pytest changed as soon as it is loaded."""
    loader = spec.loader
    load = loader.exec_module

    def exec_module(module):
        load(module)
        try:
            CHANGES[name](module)
        except Exception as error:
            own.report("failed", "%s: %r" % (name, error))

    loader.exec_module = exec_module


def of_paths(module):
    original = module.determine_setup
    signature = inspect.signature(original)

    def determine_setup(*arguments, **named):
        global is_strict
        bound = signature.bind(*arguments, **named)
        paths = [str(path).split("::")[0] for path in bound.arguments.get("args") or ()]
        paths = [path for path in paths if not path.startswith("-") and os.path.exists(path)] or [os.getcwd()]
        is_strict = any(is_tests(path) for path in paths)
        found = original(*arguments, **named)
        settings = found[1]
        if not is_strict or bound.arguments.get("inifile") or settings is None or is_tests(settings):
            return found
        own.report("pytest", str(settings))
        bound.arguments["inifile"] = NO_SETTINGS
        if not bound.arguments.get("rootdir_cmd_arg"):
            root = os.path.commonpath([os.path.realpath(path) for path in paths + [os.getcwd()]])
            bound.arguments["rootdir_cmd_arg"] = own.TESTS if root == "/" else root
        found = list(original(*bound.args, **bound.kwargs))
        found[1] = None
        return tuple(found)

    module.determine_setup = determine_setup


def of_config(module):
    manager = module.PytestPluginManager
    import_conftest = manager._importconftest
    load_plugins = manager.load_setuptools_entrypoints

    def _importconftest(self, conftestpath, *arguments, **named):
        if is_strict and not is_tests(conftestpath):
            own.report("pytest", str(conftestpath))
            return type(sys)("conftest")
        return import_conftest(self, conftestpath, *arguments, **named)

    def load_setuptools_entrypoints(self, group, *arguments, **named):
        if not is_strict:
            return load_plugins(self, group, *arguments, **named)
        try:
            import importlib.metadata as metadata
        except ImportError:
            import importlib_metadata as metadata
        distributions = metadata.distributions
        metadata.distributions = lambda **options: filter(is_setups, distributions(**options))
        try:
            return load_plugins(self, group, *arguments, **named)
        finally:
            metadata.distributions = distributions

    def is_setups(distribution):
        path = str(getattr(distribution, "_path", None) or distribution.locate_file(""))
        if not own.is_agents(path) or own.was_there(path):
            return True
        if any(entry.group == "pytest11" for entry in distribution.entry_points):
            own.report("pytest", path)
        return False

    manager._importconftest = _importconftest
    manager.load_setuptools_entrypoints = load_setuptools_entrypoints
    if hasattr(manager, "_is_in_confcutdir"):
        is_in_confcutdir = manager._is_in_confcutdir
        manager._is_in_confcutdir = lambda self, path: (
            is_in_confcutdir(self, path) and (not is_strict or is_tests(path))
        )


def of_files(module):
    original = module.resolve_package_path

    def resolve_package_path(path):
        package = original(path)
        # No package of the agent's around the tests.
        if is_strict and package is not None and is_tests(path) and not is_tests(package):
            return type(package)(own.TESTS) if os.path.exists(own.TESTS + "/__init__.py") else None
        return package

    module.resolve_package_path = resolve_package_path


def of_rewriting(module):
    original = module.get_cache_dir

    def get_cache_dir(file_path):
        found = original(file_path)
        if own.is_agents(str(file_path)):
            return type(found)(own.STATE + "bytecode" + os.path.abspath(str(found)))
        return found

    module.get_cache_dir = get_cache_dir


CHANGES = {
    "_pytest.assertion.rewrite": of_rewriting if "modules" not in own.trusted else lambda module: None,
    "_pytest.config": of_config if "pytest" not in own.trusted else lambda module: None,
    "_pytest.config.findpaths": of_paths if "pytest" not in own.trusted else lambda module: None,
    "_pytest.pathlib": of_files if "pytest" not in own.trusted else lambda module: None,
}
