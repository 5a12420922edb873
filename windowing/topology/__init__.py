"""Topologies as data: decorators, components, groupings, settings, the builder and the plan it makes."""
