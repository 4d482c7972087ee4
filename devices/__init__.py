"""Where bundles run: one YAML file per device, one module per driver."""
