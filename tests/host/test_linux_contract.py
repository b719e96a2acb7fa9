"""The Linux host fulfils the host contract."""

from __future__ import annotations

from host_contract import HostContract, ServiceContract
from host_machines import requires_namespaces
from service_machines import requires_nftables


@requires_namespaces
class TestLinuxHost(HostContract):
    pass


@requires_namespaces
@requires_nftables
class TestLinuxServices(ServiceContract):
    pass
