"""
Everything on one machine: embedded servers, API and workers under one supervisor, and the main job as a demonstration.
"""
