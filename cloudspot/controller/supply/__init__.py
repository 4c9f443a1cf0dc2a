"""What a job lacks, and which offer is bought for it, if any; pure, but for what other jobs have seen."""
