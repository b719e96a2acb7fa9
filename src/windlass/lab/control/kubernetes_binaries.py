"""Which Kubernetes the lab runs, and where its programs are on this machine. `tools/build-kubernetes` puts them there.

It uses the standard library only: the tool runs before anything is installed.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

VERSION = "1.34.4"
DIRECTORY_VARIABLE = "WINDLASS_KUBERNETES"  # names another place

# Each program and the Go package that it is. etcd comes in the version that this Kubernetes is made and tested with:
# Kubernetes' own list of modules names it, with its digest.
CONTROL_PLANE: Mapping[str, str] = {
    "etcd": "go.etcd.io/etcd/server/v3",
    "kube-apiserver": "k8s.io/kubernetes/cmd/kube-apiserver",
    "kube-controller-manager": "k8s.io/kubernetes/cmd/kube-controller-manager",
    "kube-scheduler": "k8s.io/kubernetes/cmd/kube-scheduler",
    "kubectl": "k8s.io/kubernetes/cmd/kubectl",
}
# What a cluster with real kubelets needs besides, and Kubernetes' own tests with what runs in their Pods.
WHOLE_CLUSTER: Mapping[str, str] = {
    "kubelet": "k8s.io/kubernetes/cmd/kubelet",
    "coredns": "windlass-coredns",  # a module of its own: tools/coredns
    "agnhost": "k8s.io/kubernetes/test/images/agnhost",
    "regression-issue-74839": "k8s.io/kubernetes/test/images/regression-issue-74839",
    "ginkgo": "github.com/onsi/ginkgo/v2/ginkgo",
    "e2e.test": "k8s.io/kubernetes/test/e2e",
}
PROGRAMS: Mapping[str, str] = {**CONTROL_PLANE, **WHOLE_CLUSTER}


def directory() -> Path:
    """Outside the repository: they are built once for a machine."""
    if named := os.environ.get(DIRECTORY_VARIABLE):
        return Path(named)
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / f"windlass/kubernetes-{VERSION}"


def path_of(program: str) -> Path:
    return directory() / "bin" / program


def missing(*programs: str) -> str:
    """What is not there and how to get it, as a sentence; nothing where all of them are there."""
    absent = [program for program in programs if not path_of(program).exists()]
    if not absent:
        return ""
    return f"{directory()}: {', '.join(absent)} not built; tools/build-kubernetes does that, once for a machine"
