"""``python -m stratos_lora_registry``."""

import sys

from stratos.rpc.serving.process import serve
from stratos.rpc.settings import load_settings
from stratos_lora_registry.service import LoraRegistryService
from stratos_lora_registry.settings import LoraRegistrySettings


def main() -> int:
    """Run the service; returns the exit code."""
    settings = load_settings(LoraRegistrySettings)
    return serve(lambda: LoraRegistryService(settings), settings)


if __name__ == "__main__":
    sys.exit(main())
