"""Before a job is submitted: its file is read, its inputs and image are looked up, its cost is foretold."""
