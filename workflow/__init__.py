"""The pipeline's rules, and the packages bench and cluster that they run.

A regular package: as a namespace package it would be hidden by another project's ``workflow/__init__.py`` wherever that
lies on Python's path.
"""
