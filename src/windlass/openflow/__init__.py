"""OpenFlow as values: fields, matches, actions, flows and groups; their text and their wire form; no I/O."""
