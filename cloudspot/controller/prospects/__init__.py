"""Forecasts of a job before anything is bought; pure, except that earlier jobs are read."""
