"""The parts of a merge by columns, for the engines of a rewrite.

sources, key_columns ─▶ newest_keys ─▶ choice ─▶ winners
"""
