"""How an objective is optimised: Adam, many seeds in one program, CUDA graphs. Knows no learner."""
