"""OpenFlow 1.5 with Open vSwitch's extensions, as bytes.

Its law: what `flows.encode` and `groups.encode` produce is byte for byte what Open vSwitch reports of the same flow
or group, so that comparing a switch with what it should hold is comparing bytes. No I/O: the connection is elsewhere.
"""
