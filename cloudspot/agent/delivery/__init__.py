"""What a node brings to the bucket while it trains, and back onto its disk."""
