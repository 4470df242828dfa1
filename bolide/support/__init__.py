"""What every stage needs: errors, trace events, configuration, log names. Imports nothing else of bolide."""
