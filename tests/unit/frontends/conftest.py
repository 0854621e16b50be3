"""What the tests in the folders below import is here."""
