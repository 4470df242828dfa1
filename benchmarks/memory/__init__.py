"""A suite of small programs whose time is the time of moving memory."""
