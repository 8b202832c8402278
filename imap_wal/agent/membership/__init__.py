"""Which Hazelcast cluster may write, and which of its members: sessions, claims, views, signs of
life."""
