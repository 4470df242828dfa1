"""`bolide demo`: a small character-level GPT trained on real text, eager and compiled side by side."""
