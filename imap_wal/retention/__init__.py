"""How a log gets smaller by itself: archives, removal of old files, and what decides it."""
