"""What bolide did, for people: `explain`, reports, facts about the host. It reads trace events."""
