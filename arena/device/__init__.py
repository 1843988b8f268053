"""The device behind the readers' tensors: what pins memory, copies from it, and tells when it is done."""
