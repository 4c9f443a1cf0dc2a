"""The journal, and the job's history that follows from it and from other records."""
