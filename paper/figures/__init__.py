"""The paper's figures: numbers that are measured once and kept as CSV, and the pictures drawn from them."""
