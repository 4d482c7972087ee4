"""Stands in for TVM's C++ RPC server, by the one in Python: `tvm_rpc server --host=... --port=... --port-end=...`.

The program of TVM's own that does so wants more packages than TVM's environment has.
"""

import sys

from tvm.rpc.server import PopenRPCServerState  # type: ignore[import-not-found]

given = dict(word.removeprefix("--").split("=") for word in sys.argv[2:])
server = PopenRPCServerState(given["host"], int(given["port"]), int(given["port-end"]))
server.thread.join()
