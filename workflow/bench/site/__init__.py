"""The site: one HTML file with the claims, figures, tables, machines and runs of a results folder."""
