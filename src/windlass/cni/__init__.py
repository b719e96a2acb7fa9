"""The agent's side of CNI: it attaches Pods to the network. Which flows a Pod needs is not decided here."""
