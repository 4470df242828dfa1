"""CPython's instructions of all versions in one form, and what follows from them: live variables, joins of branches."""
