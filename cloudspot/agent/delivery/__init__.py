"""Upload a node's files to the bucket while it trains, and restore them to its disk."""
