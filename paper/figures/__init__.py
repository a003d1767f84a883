"""The paper's figures: for each its numbers, measured once and kept as CSV, and the picture drawn from them."""
