"""A real kube-apiserver for the agents of this folder, where the lab can run one."""

from __future__ import annotations

import sys

if sys.platform != "win32":
    from apiserver_fixtures import api, control_plane, short_delays

    __all__ = ["api", "control_plane", "short_delays"]
