"""Runs in Windows' Python: the command `windlass` or another module, with stand-ins for what Wine lacks.

The first three arguments are the paths of the stand-ins for IP Helper, HCN and netsh, the fourth is the module; the
others go to the module.
"""

from __future__ import annotations

import runpy
import socket
import sys
from functools import partial

if sys.platform != "win32":
    raise ImportError("this runs on Windows only")

from windlass.host.windows import hosts
from windlass.host.windows.hosts import WindowsParts
from windlass.model.families import IPAddress


def udp_socket(address: IPAddress, port: int) -> socket.socket:
    """Wine binds an IPv4 UDP socket to the address's interface, at all addresses: then 127.0.0.1 is in use, too. It
    binds a socket for both families to the address itself, as Windows does with either.
    """
    bound = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
    try:
        bound.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        bound.bind((f"::ffff:{address}", port))
    except OSError:
        bound.close()
        raise
    return bound


if __name__ == "__main__":
    ip_helper, compute_network, netsh, module = (sys.argv.pop(1) for _ in range(4))
    parts = WindowsParts(ip_helper, compute_network, compute_network, netsh, open_udp_socket=udp_socket)
    setattr(hosts, "WindowsHost", partial(hosts.WindowsHost, parts=parts))  # noqa: B010 - a stand-in
    runpy.run_module(module, run_name="__main__")
