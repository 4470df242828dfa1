"""Values that stand for arrays, texts and views of dicts: each with how it is read and how it is rebuilt."""
