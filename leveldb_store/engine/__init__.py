"""LevelDB itself: opened, repaired, compacted, and room kept on its disk."""
