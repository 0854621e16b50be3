"""What is counted: for each model version, and by engines themselves."""
