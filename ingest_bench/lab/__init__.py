"""Execution of a plan: campaign, runner, procedure, evaluation."""
