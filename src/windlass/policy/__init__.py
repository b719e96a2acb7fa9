"""NetworkPolicy and ClusterNetworkPolicy: what they mean, compiled for one Node and explained."""
