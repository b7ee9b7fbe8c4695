"""Records of ``stratos.core`` as protobuf messages, both directions in one file each."""
