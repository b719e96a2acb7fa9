"""The version of Kubernetes that the lab runs, and where `tools/build-kubernetes` puts its programs.

It uses only the standard library, because that tool runs before anything is installed.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

VERSION = "1.34.4"
DIRECTORY_VARIABLE = "WINDLASS_KUBERNETES"  # an environment variable that names another folder

# Each program and its Go package. The version of etcd is the one that Kubernetes is built and tested with: its list of
# modules names it with a digest.
CONTROL_PLANE: Mapping[str, str] = {
    "etcd": "go.etcd.io/etcd/server/v3",
    "kube-apiserver": "k8s.io/kubernetes/cmd/kube-apiserver",
    "kube-controller-manager": "k8s.io/kubernetes/cmd/kube-controller-manager",
    "kube-scheduler": "k8s.io/kubernetes/cmd/kube-scheduler",
    "kubectl": "k8s.io/kubernetes/cmd/kubectl",
}
# What a cluster with real kubelets needs in addition, and the tests of Kubernetes with the programs of their Pods.
WHOLE_CLUSTER: Mapping[str, str] = {
    "kubelet": "k8s.io/kubernetes/cmd/kubelet",
    "coredns": "windlass-coredns",  # the module in tools/coredns
    "agnhost": "k8s.io/kubernetes/test/images/agnhost",
    "regression-issue-74839": "k8s.io/kubernetes/test/images/regression-issue-74839",
    "ginkgo": "github.com/onsi/ginkgo/v2/ginkgo",
    "e2e.test": "k8s.io/kubernetes/test/e2e",
}
PROGRAMS: Mapping[str, str] = {**CONTROL_PLANE, **WHOLE_CLUSTER}


def directory() -> Path:
    """Outside the repository: the programs are built once per machine."""
    if named := os.environ.get(DIRECTORY_VARIABLE):
        return Path(named)
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / f"windlass/kubernetes-{VERSION}"


def path_of(program: str) -> Path:
    return directory() / "bin" / program


def missing(*programs: str) -> str:
    """An error message that names the missing programs and how to build them; empty if none is missing."""
    absent = [program for program in programs if not path_of(program).exists()]
    if not absent:
        return ""
    return f"{directory()}: {', '.join(absent)} not built; tools/build-kubernetes does that, once for a machine"
