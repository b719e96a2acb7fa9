#!/bin/sh
# Starts ovs-vswitchd such that the host keeps its network, with or without an agent. ovsdb-server runs or starts soon.
#
#   start-ovs-vswitchd.sh [OPTION...]   prepare the database, then become `ovs-vswitchd OPTION...`
#   start-ovs-vswitchd.sh --prepare     only step 1, if another program starts ovs-vswitchd
#
# 1. The database survives a reboot, and with it the NIC's port of the bridge. After a reboot the NIC has its address again,
#    but as a port it would pass its packets to a bridge without flows. So an uplink port of another boot is removed
#    before ovs-vswitchd sees it; the agent adds it again.
# 2. In the same boot the kernel still forwards by the flows of the previous ovs-vswitchd. `flow-restore-wait` keeps them
#    until the agent has installed its flows; then the agent removes that key.
# 3. If no agent installs flows in time, flows for the host's own traffic are added, and the wait ends.
#
# Steps 2 and 3 are for the kernel's datapath. The userspace datapath ends with ovs-vswitchd, and with it the bridge
# interface that has the Node's address: only an agent can restore it.
set -eu
PATH=$PATH:/usr/sbin:/sbin

BOOT=$(cat /proc/sys/kernel/random/boot_id)
SECONDS_TO_FILL=60 # while the kernel forwards by the former flows
SECONDS_WITHOUT=10 # if nothing is forwarded meanwhile

say() { echo "$(date -u +%Y-%m-%dT%H:%M:%SZ) start-ovs-vswitchd: $*" >&2; }

# Works also while ovs-vswitchd is stopped.
vsctl() { ovs-vsctl --retry --no-wait "$@"; }

uplinks() { vsctl --bare --columns=name find Interface external_ids:windlass-role=uplink; }

release_uplinks_of_another_boot() {
    for nic in $(uplinks); do
        taken=$(vsctl --if-exists get Interface "$nic" external_ids:windlass-boot | tr -d '"')
        if [ -n "$taken" ] && [ "$taken" != "$BOOT" ]; then
            say "the machine has rebooted: $nic belongs to the host until an agent makes it a port again"
            vsctl --if-exists del-port "$nic" -- remove Open_vSwitch . other_config flow-restore-wait
        fi
    done
}

is_in_kernel() { [ "$(vsctl get Bridge "$1" datapath_type | tr -d '"')" != netdev ]; }

# Other bridges would wait, too, and no agent installs flows there.
is_only_bridge() { [ "$(vsctl list-br | wc -l)" = 1 ]; }

# The output of a command to the running switch; empty if it does not answer.
ask() { timeout 5 "$@" 2>/dev/null || true; }

is_filled() {
    if [ "$1" = wait ]; then
        config=$(ask ovs-vsctl --columns=other_config list Open_vSwitch .)
        [ -n "$config" ] && [ "${config#*flow-restore-wait}" = "$config" ]
    else
        [ "$(count_flows)" -gt 0 ]
    fi
}

count_flows() {
    count=$(ask ovs-ofctl -O OpenFlow13 dump-aggregate "$bridge" | sed -n 's/.*flow_count=//p')
    echo "${count:-0}"
}

# Returns when an agent has installed its flows, or after the time limit, or when ovs-vswitchd ($1) has ended.
await_agent() {
    end=$(($(date +%s) + $3))
    while [ "$(date +%s)" -lt "$end" ]; do
        sleep 1
        if ! kill -0 "$1" 2>/dev/null || is_filled "$2"; then return; fi
    done
    say "no agent has installed flows in $bridge within $3 s"
    if [ "$(count_flows)" = 0 ]; then
        say "only the host's own traffic passes now, by $uplink"
        number=$(ask ovs-vsctl get Interface "$uplink" ofport)
        ask ovs-ofctl -O OpenFlow13 add-flow "$bridge" "priority=1,in_port=$number,actions=LOCAL"
        ask ovs-ofctl -O OpenFlow13 add-flow "$bridge" "priority=1,in_port=LOCAL,actions=output:$number"
    fi
    ask ovs-vsctl --no-wait remove Open_vSwitch . other_config flow-restore-wait
}

release_uplinks_of_another_boot
[ "${1:-}" != --prepare ] || exit 0

uplink=$(uplinks | head -n 1)
bridge=${uplink:+$(vsctl iface-to-br "$uplink")}
if [ -n "$bridge" ] && is_in_kernel "$bridge"; then
    if is_only_bridge; then
        vsctl set Open_vSwitch . other_config:flow-restore-wait=true
        await_agent $$ wait "$SECONDS_TO_FILL" &
    else
        await_agent $$ empty "$SECONDS_WITHOUT" &
    fi
fi
exec ovs-vswitchd "$@"
