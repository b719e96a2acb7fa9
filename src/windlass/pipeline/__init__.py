"""The flows of a Node: the declarations (`layout`), and one module per concern. Pure."""
