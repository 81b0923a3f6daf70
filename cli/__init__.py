"""The command lines `actstore` and `ppa`. Heavy imports happen inside commands: --help answers at once."""
