"""Why a target differs: how far apart two values are, what the differing cases share, which changed lines they ran,
and whether only the numbers drawn are others. Information beside the verdict, never a pass."""
