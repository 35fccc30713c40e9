"""What ``ernie-pair`` offers for all commands: their list, versions, shell completion."""
