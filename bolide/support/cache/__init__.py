"""Files that many processes share."""
