"""The switch: its database (OVSDB), and its flows and groups (OpenFlow), kept as the Program says."""
