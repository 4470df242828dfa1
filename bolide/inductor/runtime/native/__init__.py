"""The native driver: a Plan as a program of 64-bit words, run by one native function that all plans share."""
