"""The market policy: what to hold next, by rule, by plan or by hindsight, and what is known of the market."""
