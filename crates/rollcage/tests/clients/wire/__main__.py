"""OpenEnv's wire, route by route, with OpenEnv's own Python clients and with raw requests.

    python crates/rollcage/tests/clients/wire http://127.0.0.1:8000 [--sessions 16] [--production] [-k PATTERN]

Needs `pip install openenv==0.10.0`, which brings fastmcp, httpx, websockets and jsonschema. The server is `rollcage
serve`, or the one of the test `official_clients`; nobody else may use it meanwhile, since all of its sessions are taken
for a moment. Exits with 0 when everything held.
"""

import argparse
import logging
import sys
import unittest

import clients
import http_routes
import json_rpc
import sessions
import sockets
import validation
from server import Server, WireTest, sample_of


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url")
    parser.add_argument("--sessions", type=int, default=16, help="how many sessions the server has")
    parser.add_argument("--production", action="store_true", help="the mode that the server is in")
    parser.add_argument("-k", dest="pattern", help="only tests with this in their name")
    asked = parser.parse_args()
    url = asked.url.rstrip("/")
    WireTest.server = Server(url, asked.production, asked.sessions, sample_of(url))
    # The loop of a test case tells of every callback that took a moment.
    logging.getLogger("asyncio").setLevel(logging.ERROR)
    loader = unittest.TestLoader()
    if asked.pattern:
        loader.testNamePatterns = [f"*{asked.pattern}*"]
    modules = (http_routes, json_rpc, sockets, sessions, clients, validation)
    suite = unittest.TestSuite(loader.loadTestsFromModule(module) for module in modules)
    result = unittest.TextTestRunner(verbosity=2).run(suite)
    sys.exit(0 if result.wasSuccessful() and result.testsRun else 1)


main()
