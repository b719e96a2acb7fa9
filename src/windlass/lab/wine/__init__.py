"""Windows Nodes under Wine: their programs, and stand-ins for the parts of a Windows host that Wine lacks."""
