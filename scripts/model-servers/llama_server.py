"""llama.cpp's own HTTP server, as PyPI ships it: MODEL PORT."""

import sys
import time

import xllamacpp

params = xllamacpp.CommonParams()
params.model.path = sys.argv[1]
params.port = int(sys.argv[2])
params.n_ctx = 131072
params.warmup = False
server = xllamacpp.Server(params)
print("serving at", server.listening_address, flush=True)
while True:
    time.sleep(60)
