"""Namespaces, links, boxes and real interfaces: the plans of `network.plan`, carried out."""
