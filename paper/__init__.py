"""The reproduction of the paper: what is measured, the result files, and the page and figures made from them."""
