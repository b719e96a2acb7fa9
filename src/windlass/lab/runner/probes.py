"""Sends the probes of a step through a running cluster and judges them; held and rated probes run until the end."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import dataclass
from ipaddress import ip_address

from msgspec.structs import replace

from windlass.lab.orchestration.clusters import RunningCluster
from windlass.lab.probing import verdicts
from windlass.lab.probing.dialers import SocketAddress
from windlass.lab.probing.traffic import ConnectionRate, HeldConnection, ProbeTraffic, Traffic
from windlass.lab.probing.verdicts import Observation, ProbeVerdict
from windlass.lab.sandbox.labs import LabError
from windlass.lab.scenarios import targets
from windlass.lab.scenarios.directives import Probe, WindowsDifference
from windlass.lab.scenarios.objects import ProbeProtocol
from windlass.lab.scenarios.scenario_files import Step
from windlass.lab.scenarios.targets import Destination
from windlass.model.families import IPAddress


@dataclass(frozen=True, slots=True)
class ResolvedProbe:
    """A probe with its names resolved to addresses."""

    probe: Probe
    step: str
    traffic: ProbeTraffic
    destination: Destination
    seen_as: IPAddress | None
    difference: str = ""  # why another result is expected than on Linux

    def judged(self, observation: Observation) -> ProbeVerdict:
        return verdicts.judge(self.probe, self.step, observation, self.seen_as, self.difference)


class ProbeRunner:
    def __init__(self, cluster: RunningCluster) -> None:
        self._cluster = cluster
        self._traffic = Traffic(cluster.arrivals)
        self._slots = asyncio.Semaphore(cluster.fabric.probes_at_once)
        self._long_running: list[tuple[ResolvedProbe, HeldConnection | ConnectionRate]] = []

    async def send(self, step: Step) -> list[ProbeVerdict]:
        """The verdicts of the step's probes, without those that run until `end`."""
        found: list[ProbeVerdict] = []
        for batch in batches(self._resolve(probe, step.name) for probe in step.probes):
            await self._cluster.route({p.destination.address: p.destination.via for p in batch if p.destination.via})
            found += await self._send(batch)
        return found

    async def end(self) -> list[ProbeVerdict]:
        """Ends the probes that run until the end of the scenario, and returns their verdicts."""
        observations = await asyncio.gather(*(running.end() for _, running in self._long_running))
        resolved = [one for one, _ in self._long_running]
        self._long_running.clear()
        return [one.judged(observation) for one, observation in zip(resolved, observations, strict=True)]

    def _resolve(self, probe: Probe, step: str) -> ResolvedProbe:
        probe, difference = self._on_its_host(probe)
        desired, spec = self._cluster.desired, probe.spec
        try:
            destination = targets.resolve(probe, desired, self._cluster.addresses)
            seen_as = targets.seen_address(probe, destination, desired)
        except targets.UnresolvedError as error:
            raise LabError(f"{step}: Probe {probe.name}, {error}") from error
        traffic = ProbeTraffic(
            self._cluster.namespace_of(spec.source),
            spec.protocol,
            SocketAddress(destination.address, destination.port),
            spec.connections,
            spec.bytes,
            ip_address(spec.source_address) if spec.source_address else None,
        )
        return ResolvedProbe(probe, step, traffic, destination, seen_as, difference)

    def _on_its_host(self, probe: Probe) -> tuple[Probe, str]:
        """The probe with its expectation for a Windows host, and the reason, if it addresses one."""
        declared, node = probe.spec.on_windows_host, probe.spec.target.node
        if not isinstance(declared, WindowsDifference) or not self._cluster.fabric.runs_windows(node):
            return probe, ""
        return replace(probe, spec=replace(probe.spec, expect=declared.expect)), declared.why

    async def _send(self, batch: list[ResolvedProbe]) -> list[ProbeVerdict]:
        holding = [p for p in batch if p.probe.spec.hold]
        held = await asyncio.gather(*(self._traffic.hold(p.traffic) for p in holding))
        self._long_running += zip(holding, held, strict=True)
        rated = [p for p in batch if p.probe.spec.rate]
        self._long_running += [(p, self._traffic.rate(p.traffic, p.probe.spec.rate)) for p in rated]
        short = [p for p in batch if not (p.probe.spec.hold or p.probe.spec.rate)]
        with ExitStack() as watching:
            if any(p.traffic.source and p.traffic.protocol is ProbeProtocol.TCP for p in short):
                watching.enter_context(self._cluster.arrivals.watching_syns(self._cluster.machines()))
            observations = await asyncio.gather(*(self._observe(p.traffic) for p in short))
        return [p.judged(observation) for p, observation in zip(short, observations, strict=True)]

    async def _observe(self, traffic: ProbeTraffic) -> Observation:
        async with self._slots:
            return await self._traffic.observe(traffic)


def batches(probes: Iterable[ResolvedProbe]) -> list[list[ResolvedProbe]]:
    """Probes that can be sent together: the underlay can route an address to only one Node at a time."""
    result: list[list[ResolvedProbe]] = [[]]
    for one in probes:
        address, via = one.destination.address, one.destination.via
        for batch in result:
            routed = {p.destination.via for p in batch if p.destination.address == address and p.destination.via}
            if not via or routed <= {via}:
                batch.append(one)
                break
        else:
            result.append([one])
    return result
