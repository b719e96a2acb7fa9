"""The network that a lab builds: bridges, links and routers between machines, and one Open vSwitch per Node."""
