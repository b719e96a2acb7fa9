"""Random clusters, judged by an oracle: `windlass lab fuzz`.

`random_scenarios` makes a scenario from a seed. It throws `dice` for a cluster (`random_clusters`,
`random_services`, `random_policies`, `irrelevant_objects`), which is first a draft (`drafts`), and for the changes
between steps (`cluster_steps`, `random_changes`, `random_policies`). The oracle reads the written `documents`
(`cluster_views`). `random_queries` decides which client connects to which address, `oracle` and `eligible_endpoints`
say what must happen, and `random_probes`, `random_policy_probes`, `lasting_connections` and `lasting_denials` write the
probes. `seeds` finds clusters that have certain `features`. `runs` runs the scenarios.
"""
