"""Secrets are removed from a support bundle; everything else is kept."""

from __future__ import annotations

import pytest

from windlass.support.redactions import REDACTED, redacted

WEB_TOKEN = "eyJhbGciOiJSUzI1NiIsImtpZCI6IiJ9.eyJpc3MiOiJrdWJlcm5ldGVzL3NlcnZpY2UifQ.c2lnbmF0dXJl"  # noqa: S105 - of nobody
HIDDEN = "hunter2-and-more"


@pytest.mark.parametrize(
    "text",
    [
        f"password: {HIDDEN}",
        f'  "clientSecret": "{HIDDEN} with spaces", "port": 80',
        f"token={HIDDEN}",
        f"Authorization: Bearer {HIDDEN}",
        f"authorization: basic {HIDDEN}",
        f"https://me:{HIDDEN}@10.0.0.1:6443/api",
        f"client-key-data: {HIDDEN}",
        f"certificate-authority-data: {HIDDEN}",
        f'options : {{psk="{HIDDEN}", remote_ip="10.0.0.2"}}',
        f"apiKey: '{HIDDEN}'",
        f"--private-key={HIDDEN}",
        f"-----BEGIN EC PRIVATE KEY-----\n{HIDDEN}\n{HIDDEN}\n-----END EC PRIVATE KEY-----",
        f"-----BEGIN PRIVATE KEY-----\n{HIDDEN}\nand then it was cut off",
        f"AWS_SECRET={HIDDEN}",
    ],
)
def test_a_secret_is_removed(text):
    kept = redacted(f"before\n{text}\nafter")
    assert HIDDEN not in kept
    assert REDACTED in kept
    assert kept.startswith("before\n")


def test_a_token_is_removed_anywhere_in_a_text():
    assert redacted(f'error="401 for {WEB_TOKEN}" x=1') == f'error="401 for {REDACTED}" x=1'


def test_text_after_a_secret_is_kept():
    assert redacted('{"token": "abc", "node": "node-1"}') == f'{{"token": {REDACTED}, "node": "node-1"}}'
    assert redacted("-----BEGIN X-----\nabc\n-----END X-----\nnext").endswith("\nnext")


@pytest.mark.parametrize(
    "text",
    [
        " cookie=0x1f, table=L3Forwarding, priority=200,ip,nw_dst=10.96.0.10 actions=group:77\n",
        '{"metadata": {"name": "web", "namespace": "default"}, "spec": {"clusterIP": "10.96.0.10"}}',
        "apiServer: https://10.0.0.1:6443\nkubeconfig: /etc/windlass/kubeconfig\n",
        "10.176.25.0/24 dev br-int proto kernel scope link src 10.176.25.11\n",
        "the token of the service account is not accepted\n",
    ],
)
def test_text_without_secrets_is_kept(text):
    assert redacted(text) == text
