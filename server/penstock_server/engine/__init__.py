"""Steps: what a plan changes, the tensors of a step, sampling, and the outcome."""
