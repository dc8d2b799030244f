"""The LightningModule and the networks behind it (configs/model)."""
