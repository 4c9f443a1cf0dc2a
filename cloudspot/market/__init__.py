"""Market policies, which choose the machines to hold next; plans, simulations and knowledge of the market."""
