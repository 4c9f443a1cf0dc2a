"""The journal, and the job's history, which follows from the journal and other records."""
