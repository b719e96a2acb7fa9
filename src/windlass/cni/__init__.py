"""How a Pod gets its network: the CNI plugin's other end. What flows a Pod needs is not decided here."""
