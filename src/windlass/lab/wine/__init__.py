"""Windows Nodes under Wine: their programs, and what plays the parts of a Windows host that Wine lacks."""
