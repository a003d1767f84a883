"""The paper's tables, measured: cells, the runs they need, the files they are kept in, and the page made of them."""
