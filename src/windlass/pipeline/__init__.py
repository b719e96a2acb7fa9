"""What a packet can meet on a Node: the declarations (`layout`), and one module per concern. Pure."""
