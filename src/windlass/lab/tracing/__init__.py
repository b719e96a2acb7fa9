"""The path of one real connection through a running cluster, hop by hop and flow by flow."""
