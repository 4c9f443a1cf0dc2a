"""The job file: what people write in it, as typed values, and what is wrong with it in their own terms."""
