"""Sends the probes of a step through a running cluster and has them judged; keeps the long ones going until the end."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack
from dataclasses import dataclass
from ipaddress import ip_address
from typing import TYPE_CHECKING

from windlass.lab.probing import verdicts
from windlass.lab.probing.dialers import SocketAddress
from windlass.lab.probing.traffic import ConnectionRate, HeldConnection, ProbeTraffic, Traffic
from windlass.lab.sandbox.labs import LabError
from windlass.lab.scenarios import targets
from windlass.lab.scenarios.objects import ProbeProtocol

if TYPE_CHECKING:
    from collections.abc import Iterable

    from windlass.lab.orchestration.clusters import RunningCluster
    from windlass.lab.probing.verdicts import Observation, ProbeVerdict
    from windlass.lab.scenarios.directives import Probe
    from windlass.lab.scenarios.scenario_files import Step
    from windlass.lab.scenarios.targets import Destination
    from windlass.model.families import IPAddress


@dataclass(frozen=True, slots=True)
class ResolvedProbe:
    """A probe whose names are resolved."""

    probe: Probe
    step: str
    flow: ProbeTraffic
    destination: Destination
    seen_as: IPAddress | None

    def judged(self, observation: Observation) -> ProbeVerdict:
        return verdicts.judge(self.probe, self.step, observation, self.seen_as)


class ProbeRunner:
    def __init__(self, cluster: RunningCluster) -> None:
        self._cluster = cluster
        self._traffic = Traffic(cluster.arrivals)
        self._going_on: list[tuple[ResolvedProbe, HeldConnection | ConnectionRate]] = []

    async def send(self, step: Step) -> list[ProbeVerdict]:
        """The verdicts of all probes of the step but those that go on until `end`."""
        verdicts: list[ProbeVerdict] = []
        for wave in batches(self._aimed(probe, step.name) for probe in step.probes):
            await self._cluster.route({a.destination.address: a.destination.via for a in wave if a.destination.via})
            verdicts += await self._send(wave)
        return verdicts

    async def end(self) -> list[ProbeVerdict]:
        """The scenario is over: the verdicts of the probes that went on."""
        observations = await asyncio.gather(*(going.end() for _, going in self._going_on))
        aimed = [aimed for aimed, _ in self._going_on]
        self._going_on.clear()
        return [a.judged(observation) for a, observation in zip(aimed, observations, strict=True)]

    def _aimed(self, probe: Probe, step: str) -> ResolvedProbe:
        desired, spec = self._cluster.desired, probe.spec
        try:
            destination = targets.resolve(probe, desired, self._cluster.addresses)
            seen_as = targets.seen_address(probe, destination, desired)
        except targets.UnresolvedError as error:
            raise LabError(f"{step}: Probe {probe.name}, {error}") from error
        flow = ProbeTraffic(
            self._cluster.namespace_of(spec.source),
            spec.protocol,
            SocketAddress(destination.address, destination.port),
            spec.connections,
            spec.bytes,
            ip_address(spec.source_address) if spec.source_address else None,
        )
        return ResolvedProbe(probe, step, flow, destination, seen_as)

    async def _send(self, wave: list[ResolvedProbe]) -> list[ProbeVerdict]:
        holding = [a for a in wave if a.probe.spec.hold]
        held = await asyncio.gather(*(self._traffic.hold(a.flow) for a in holding))
        self._going_on += zip(holding, held, strict=True)
        self._going_on += [(a, self._traffic.rate(a.flow, a.probe.spec.rate)) for a in wave if a.probe.spec.rate]
        passing = [a for a in wave if not (a.probe.spec.hold or a.probe.spec.rate)]
        with ExitStack() as watching:
            if any(a.flow.source and a.flow.protocol is ProbeProtocol.TCP for a in passing):
                watching.enter_context(self._cluster.arrivals.watching_syns(self._cluster.machines()))
            observations = await asyncio.gather(*(self._traffic.observe(a.flow) for a in passing))
        return [a.judged(observation) for a, observation in zip(passing, observations, strict=True)]


def batches(aimed: Iterable[ResolvedProbe]) -> list[list[ResolvedProbe]]:
    """All at once, but that the underlay can route an address to only one Node at a time."""
    result: list[list[ResolvedProbe]] = [[]]
    for one in aimed:
        address, via = one.destination.address, one.destination.via
        for wave in result:
            routed = {a.destination.via for a in wave if a.destination.address == address and a.destination.via}
            if not via or routed <= {via}:
                wave.append(one)
                break
        else:
            result.append([one])
    return result
