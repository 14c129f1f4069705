"""Between a Terraform stack of `infra/` and a configuration: connects them, checks the account, lists what is left."""
