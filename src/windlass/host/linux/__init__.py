"""The Linux host: rtnetlink, sysctl files and ethtool in-process; it starts no other program."""
