"""Forecasts of a job before anything is bought; pure, except for reading earlier jobs."""
