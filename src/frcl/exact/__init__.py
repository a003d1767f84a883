"""The exact Gaussian process on fixed features: sums over examples, and the posterior that follows from them."""
