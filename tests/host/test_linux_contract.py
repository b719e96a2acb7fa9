"""The Linux host keeps the contract."""

from __future__ import annotations

from host_contract import HostContract
from host_machines import requires_namespaces


@requires_namespaces
class TestLinuxHost(HostContract):
    pass
