"""Which modules a verify command's Python finds first.

The agent can write to the current directory and to other places that Python imports from. A module that it added there
comes after the standard library's and setup's of the same name, and bytecode that it left is not used. What stood there when
setup ended, or what the author's texts name, comes first as ever.

A failure in here changes nothing about an import, but is written down.
"""

import os
import sys

import _frozen_importlib_external as external

TESTS = "/home/user/tests"
HOME = "/home/user/"
STATE = "/opt/rollcage/verify/home/.rollcage/"
# The modules that stood in the agent's places when setup ended, each followed by a zero byte.
KEPT = "/opt/setup/.home/.python-modules"
# Where only the system's packages and setup's are, and where only the agent's are. Elsewhere permissions tell. Who could
# change the library of this Python could change this Python.
FIXED = ("/usr/", "/opt/", "/lib/", "/lib64/", "/etc/", os.path.realpath(sys.base_prefix) + "/lib/")
AGENTS = ("/home/", "/tmp/", "/var/tmp/", "/dev/shm/")
# Badly made packages install these, and every project has some. Nothing that checks imports them from elsewhere.
ANYBODYS = frozenset(("test", "tests", "conftest", "docs", "examples", "scripts", "src", "setup"))
# Python imports these by itself.
STARTED = frozenset(("sitecustomize", "usercustomize"))
REPORTS_MAX = 20

trusted = frozenset(os.environ.get("ROLLCAGE_VERIFY_TRUST", "").split(","))
named = frozenset(os.environ.get("ROLLCAGE_VERIFY_MODULES", "").split(","))
find_in_path = external.PathFinder.find_spec.__func__
cache_from_source = external.cache_from_source
places = {}
kept = None
reported = set()


def report(kind, text):
    """Writes down what was not as the agent would have it. The engine reads it when the command has ended."""
    line = kind + "\t" + text.replace("\n", " ") + "\n"
    if line in reported or len(reported) >= REPORTS_MAX:
        return
    reported.add(line)
    try:
        os.makedirs(STATE, exist_ok=True)
        with open(STATE + "found", "a", errors="backslashreplace") as file:
            file.write(line)
    except OSError:
        pass


def real(path):
    directory, name = os.path.split(path)
    return os.path.join(os.path.realpath(directory), name)


def is_agents_place(directory):
    whole = os.path.realpath(directory) + "/"
    if whole.startswith(FIXED):
        return False
    return whole.startswith(AGENTS) or os.access(whole, os.W_OK) or os.stat(whole).st_uid == os.geteuid()


def is_agents(path):
    """Whether the agent could have written a file."""
    directory = os.path.dirname(path)
    found = places.get(directory)
    if found is None:
        found = is_agents_place(directory)
        if directory.startswith("/"):
            places[directory] = found
    return found


def was_there(path):
    """Whether a file, or a directory of metadata, stood there when setup ended."""
    global kept
    if kept is None:
        try:
            with open(KEPT, "rb") as file:
                kept = frozenset(file.read().split(b"\0"))
        except FileNotFoundError:
            kept = frozenset()
    path = real(path)
    if path.startswith(TESTS + "/"):
        return True
    if path.startswith(HOME) and os.fsencode(path[len(HOME) :]) in kept:
        return True
    # There were too many to list all of them. Nobody inside can set the time of a change.
    return b"*" in kept and os.stat(path).st_ctime_ns <= os.stat(KEPT).st_ctime_ns


def is_fine(name, spec):
    """Whether a module comes where the path has it."""
    if not spec.has_location or not spec.origin or not is_agents(spec.origin):
        return True
    if type(spec.loader) is external.SourcelessFileLoader:
        return was_there(spec.origin)
    if name in ANYBODYS or name in named:
        return True
    return was_there(spec.origin)


def find_other(cls, name, spec, target):
    """What setup or the system has by the name of a module that the agent added."""
    is_left_out = name in STARTED or type(spec.loader) is external.SourcelessFileLoader
    for entry in sys.path:
        other = find_in_path(cls, name, [entry], target)
        if other is None or (other.loader is None and is_agents(os.path.join(entry or os.getcwd(), name))):
            continue
        if is_fine(name, other):
            is_left_out = True
            break
    else:
        other = None
    if not is_left_out:
        return spec
    report("modules", spec.origin)
    return other


def checked(cls, name, path, target, spec):
    if path is None or path is sys.path:
        return spec if is_fine(name, spec) else find_other(cls, name, spec, target)
    if type(spec.loader) is external.SourcelessFileLoader and not is_fine(name, spec):
        report("modules", spec.origin)
        return None
    return spec


def find_spec(cls, fullname, path=None, target=None):
    spec = find_in_path(cls, fullname, path, target)
    if spec is None:
        return None
    try:
        if "modules" not in trusted:
            spec = checked(cls, fullname, path, target, spec)
        if fullname.startswith("_pytest.") and spec is not None:
            of_pytest(fullname, spec)
    except Exception as error:
        report("failed", "%s: %r" % (fullname, error))
    return spec


def of_pytest(name, spec):
    if name not in ("_pytest.config", "_pytest.config.findpaths", "_pytest.pathlib", "_pytest.assertion.rewrite"):
        return
    own = sys.modules.get("rollcage_pytest")
    if own is None:
        own = type(sys)("rollcage_pytest")
        path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "rollcage_pytest.py")
        with open(path) as file:
            exec(compile(file.read(), path, "exec"), own.__dict__)
        sys.modules["rollcage_pytest"] = own
    own.follow(name, spec)


def cache_of(path, *arguments, **named_arguments):
    """Where the bytecode of a file is: that of the agent's files in a place which is empty when a command starts."""
    cached = cache_from_source(path, *arguments, **named_arguments)
    try:
        return STATE + "bytecode" + os.path.abspath(cached) if is_agents(path) else cached
    except Exception as error:
        report("failed", "%s: %r" % (path, error))
        raise NotImplementedError


external.PathFinder.find_spec = classmethod(find_spec)
if "modules" not in trusted:
    external.cache_from_source = cache_of
