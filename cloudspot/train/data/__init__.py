"""The position in the data: the order of samples, and loaders that resume at any batch (P6)."""
