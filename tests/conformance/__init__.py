"""What every engine must do, verb by verb; the tests know the contract and nothing else."""
