"""What ``ernie-pair`` says of all commands: the list of them, versions, completion in a shell."""
