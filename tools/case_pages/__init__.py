"""The pages under docs/cases: hand-written text, and between marks what real traces say."""
