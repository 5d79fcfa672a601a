"""
Crashes: every named crash point, real processes killed and stopped, servers that go away.
"""
