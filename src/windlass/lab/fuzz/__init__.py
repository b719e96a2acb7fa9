"""Random clusters with an oracle of their own: `windlass lab fuzz`.

To read it: `scripts` makes a scenario of a seed. It throws `dice` for a cluster (`clusters`, `offers`, `noises`), which
is a draft at first (`machines`, `services`, `drafts`), and for what changes in it (`changes`). The documents are read
again as the oracle sees them (`readings`, `views`). `questions` throws who asks what, `oracle` and `endpoints` say what
must come of it, and `probes` and `holds` make probes of both. `runs` runs the scenarios.
"""
