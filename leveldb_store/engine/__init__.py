"""LevelDB itself: opening, repair, compaction, and the reserve on its disk."""
