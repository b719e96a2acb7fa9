"""The pages under docs/cases: hand-written text, and generated text from real traces between marks."""
