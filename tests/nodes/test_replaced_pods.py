"""Policies of a Pod whose name or address another Pod had before, while the watch still has the earlier one."""

from __future__ import annotations

import pytest
from test_node_policies import CLIENTS, Followed, attached, decoded, pod, policy

from windlass.cluster.objects import Pod
from windlass.model.policies import DENY_UNTIL_KNOWN

EARLY, LATE = "2026-01-01T00:00:00Z", "2026-01-02T00:00:00Z"
ISOLATED = decoded(
    "networking.k8s.io/v1",
    "NetworkPolicy",
    {"name": "isolated", "namespace": "shop"},
    spec={"podSelector": {"matchLabels": {"app": "new"}}, "policyTypes": ["Ingress", "Egress"]},
)
OLD = pod("web", "10.1.0.2", uid="1", labels={"app": "old"}, creationTimestamp=EARLY)
NEW = pod("web", "10.1.0.3", uid="2", labels={"app": "new"}, creationTimestamp=LATE)
ENDING = pod("web", "10.1.0.2", uid="1", labels={"app": "old"}, creationTimestamp=EARLY, deletionTimestamp=LATE)


@pytest.fixture
def node() -> Followed:
    """The watch has the earlier Pod, the new one gets its port."""
    node = Followed()
    node.tell(ISOLATED, OLD)
    return node


def test_a_new_pod_that_cannot_be_read_does_not_get_the_policies_of_an_earlier_pod(node: Followed):
    assert not node.followed.knows("shop/web", "2")
    node.followed.expect("shop/web", "2")
    node.attach(attached("web", "10.1.0.3"))
    assert node.policies.pods == {"shop/web": DENY_UNTIL_KNOWN}
    node.tell(ISOLATED, ENDING)
    assert node.policies.pods == {"shop/web": DENY_UNTIL_KNOWN}, "news of the earlier Pod"
    node.tell(ISOLATED, NEW)
    assert node.policies.pods["shop/web"] != DENY_UNTIL_KNOWN


def test_a_new_pod_that_is_read_later_gets_its_own_policies(node: Followed):
    node.followed.expect("shop/web", "2")
    node.attach(attached("web", "10.1.0.3"))
    node.followed.tell(NEW)
    node.settle()
    assert node.policies.pods["shop/web"] not in {None, DENY_UNTIL_KNOWN}


@pytest.mark.parametrize("news", [(ENDING,), ()], ids=["it ends", "it is gone"])
def test_news_of_an_earlier_pod_do_not_replace_the_pod_that_was_asked_for(node: Followed, news: tuple[Pod, ...]):
    node.followed.tell(NEW)
    node.attach(attached("web", "10.1.0.3"))
    before = node.policies.pods["shop/web"]
    node.tell(ISOLATED, *news)
    assert node.policies.pods["shop/web"] == before
    assert node.followed.knows("shop/web", "2")


@pytest.mark.parametrize("uid", ["2", "3"])
def test_the_watch_replaces_the_pod_that_was_asked_for_when_it_is_as_far(node: Followed, uid: str):
    node.followed.tell(pod("web", uid="2", labels={"app": "new"}, creationTimestamp=EARLY))
    node.attach(attached("web", "10.1.0.3"))
    node.tell(ISOLATED, pod("web", uid=uid, labels={"app": "other"}, creationTimestamp=LATE))
    assert not node.policies.pods


def test_a_pod_that_was_asked_for_is_forgotten_with_its_port():
    node = Followed()
    node.tell(ISOLATED)
    node.followed.tell(NEW)
    node.attach(attached("web", "10.1.0.3"))
    node.attach()
    assert not node.followed.knows("shop/web", "2")


def test_a_late_request_for_an_earlier_pod_does_not_outlast_that_pod(node: Followed):
    node.tell(ISOLATED, NEW)
    node.followed.expect("shop/web", "1")
    node.attach(attached("web", "10.1.0.2"))
    assert node.policies.pods == {"shop/web": DENY_UNTIL_KNOWN}, "the earlier Pod is not known any more"
    node.followed.expect("shop/web", "2")
    node.attach(attached("web", "10.1.0.3"))
    assert node.policies.pods["shop/web"] != DENY_UNTIL_KNOWN


def test_a_mirror_that_was_saved_without_its_annotation_is_known_when_the_watch_delivers_it(node: Followed):
    node.followed.expect("shop/web", "hash")
    node.attach(attached("web", "10.1.0.2"))
    assert node.policies.pods == {"shop/web": DENY_UNTIL_KNOWN}
    annotations = {"kubernetes.io/config.mirror": "hash"}
    node.tell(ISOLATED, pod("web", uid="1", labels={"app": "old"}, creationTimestamp=EARLY, annotations=annotations))
    assert not node.policies.pods


def test_the_mirror_of_a_static_pod_is_known_by_the_uid_of_the_kubelet():
    node = Followed()
    node.tell(ISOLATED, pod("web", uid="1", annotations={"kubernetes.io/config.mirror": "hash", "other": "kept out"}))
    assert node.followed.knows("shop/web", "hash")
    assert not node.followed.knows("shop/web", "2")


def test_a_pod_without_its_port_has_no_address_although_its_status_still_has_one():
    """The address may be given to the next sandbox of an older Pod."""
    node = Followed()
    allowing, web = policy(ingress=({"from": [CLIENTS]},)), pod("web", "10.1.0.2")
    older = pod("older", "10.1.0.50", labels={"app": "other"}, creationTimestamp=EARLY)
    newer = pod("newer", "10.1.0.60", labels={"app": "client"}, creationTimestamp=LATE)
    node.tell(allowing, web, older, newer)
    node.attach(attached("newer", "10.1.0.60"), attached("older", "10.1.0.50"))
    assert node.allows("shop/web", "10.1.0.60")
    node.attach(attached("older", "10.1.0.60"))
    assert not node.allows("shop/web", "10.1.0.60")
    node.attach(attached("newer", "10.1.0.61"), attached("older", "10.1.0.60"))
    assert node.allows("shop/web", "10.1.0.61")


def test_an_agent_that_starts_gives_an_address_to_the_pod_that_has_a_port_for_it():
    """After a reboot the status of a Pod still has its former address until the Pod gets its new sandbox."""
    node = Followed()
    older = pod("older", "10.1.0.50", labels={"app": "other"}, creationTimestamp=EARLY)
    newer = pod("newer", "10.1.0.60", labels={"app": "client"}, creationTimestamp=LATE)
    node.tell(policy(ingress=({"from": [CLIENTS]},)), pod("web", "10.1.0.2"), older, newer)
    node.attach(attached("older", "10.1.0.60"))
    assert not node.allows("shop/web", "10.1.0.60")
    node.attach(attached("older", "10.1.0.60"), attached("newer", "10.1.0.61"))
    assert node.allows("shop/web", "10.1.0.61")


def test_a_pod_that_moves_to_another_node_has_the_address_of_its_status():
    """A source may deliver the Pods of all Nodes in one list."""
    node = Followed()
    allowing, web = policy(ingress=({"from": [CLIENTS]},)), pod("web", "10.1.0.2")
    node.tell(allowing, web, pod("client", "10.1.0.60", labels={"app": "client"}))
    node.attach(attached("client", "10.1.0.60"))
    node.attach()
    node.tell(allowing, web, pod("client", "10.2.0.60", node="node-2", labels={"app": "client"}))
    assert node.allows("shop/web", "10.2.0.60")


def test_a_policy_that_comes_later_does_not_use_the_labels_of_an_earlier_pod():
    node = Followed()
    node.tell(OLD)
    assert node.followed.knows("shop/web", "2"), "no policy can select it, so the API server is not asked"
    node.followed.expect("shop/web", "2")
    node.attach(attached("web", "10.1.0.3"))
    assert not node.policies.pods
    node.tell(ISOLATED, OLD)
    assert node.policies.pods == {"shop/web": DENY_UNTIL_KNOWN}
