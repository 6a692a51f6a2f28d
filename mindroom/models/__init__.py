"""The model edge: the only importer of agno and of provider SDKs, and the only holder of model keys (I3).

Everybody else sees `core.ports.ModelPort`. Importing this package loads neither agno nor an SDK.
"""

from mindroom.models.configured import ConfiguredModels
from mindroom.models.settings import ModelProvider, ModelSettings

__all__ = ["ConfiguredModels", "ModelProvider", "ModelSettings"]
